"""Deterministic kernels: a row has the same bits alone and with others, and on every target."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
import torch

from coreai_onnx.targets.determinism import KERNELS
from tests.custom_ops.single_op import open_session, run_model, single_op_model
from tests.custom_ops.test_linear_nbits import make
from tests.support.composite_calls import Case
from tests.support.composite_cases import CASES
from tests.support.kernel_targets import OVERRIDE, targets_of_this_machine

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
CALLS = [case for case in CASES if case.composite in KERNELS]
CALLS.append(Case("group_norm", ((2, 6, 5, 7), (6,), (6,)), {"num_groups": 2}))
CALLS.append(Case("convolution", ((2, 30, 7, 7), (200, 30, 3, 3), (200,)), {"stride": [2, 1]}))
ROWS = (1, 2, 3, 4, 5, 8, 9, 17, 64, 300)


def run(
    library: Path,
    op_type: str,
    inputs: list[torch.Tensor | None],
    *,
    outputs: int = 1,
    threads: int = 1,
    **attributes: object,
) -> list[torch.Tensor]:
    model = single_op_model(op_type, inputs, attributes, outputs=(True,) * outputs)
    session = open_session(model, library, threads, op_type, deterministic=True)
    return run_model(session, inputs)


def same(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether all bits are equal, also those of NaN and zero."""
    return actual.shape == expected.shape and torch.equal(bits(actual), bits(expected))


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().flatten().view(torch.uint8)


def test_every_kernel_has_cases() -> None:
    assert {case.composite for case in CALLS} == KERNELS


@pytest.mark.parametrize("dtype", [F32, F16, BF16, torch.float64], ids=str)
@pytest.mark.parametrize("case", CALLS, ids=str)
def test_targets(
    kernels: Path, case: Case, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(zlib.crc32(str(case).encode()))
    inputs = case.inputs(dtype)
    outputs = len(case.expected_outputs(inputs))
    targets = targets_of_this_machine(kernels)
    results = []
    for target in targets:
        monkeypatch.setenv(OVERRIDE, target)
        results.append(
            run(kernels, case.composite, inputs, outputs=outputs, **dict(case.attributes))
        )
    for target, result in zip(targets, results, strict=True):
        assert all(map(same, result, results[0])), f"{target} differs from {targets[0]}"


@pytest.mark.parametrize("dtype", [F32, F16, BF16, torch.float64], ids=str)
@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_rows_of_few_bits(kernels: Path, bits: int, rounding: int, dtype: torch.dtype) -> None:
    (x, *weight), attributes = make((300,), 3, 40, 130, bits, rounding, dtype, torch.uint8)
    whole = run(kernels, "linear_nbits", [x, *weight], threads=2, **attributes)[0]
    for rows in ROWS:
        for first in (0, 300 - rows):
            part = x[first : first + rows].contiguous()
            (actual,) = run(kernels, "linear_nbits", [part, *weight], **attributes)
            assert same(actual, whole[first : first + rows]), f"{rows} rows from {first}"


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("keys", [1, 5, 17, 300, 5000])
def test_rows_of_softmax(kernels: Path, keys: int, threads: int) -> None:
    torch.manual_seed(keys)
    x = torch.randn(64, keys) * 4
    (whole,) = run(kernels, "softmax", [x], threads=threads)
    for rows in (1, 3, 17):
        for first in (0, 5, 64 - rows):
            (part,) = run(kernels, "softmax", [x[first : first + rows].contiguous()])
            assert same(part, whole[first : first + rows])


IMAGES = {
    "points": ((70, 60, 1, 1), {}),
    "windows": ((70, 60, 3, 3), {"padding": [1, 1, 1, 1], "stride": [2, 1]}),
    "groups": ((60, 20, 3, 3), {"groups": 3, "dilation": [1, 2]}),
    "few_windows": ((192, 60, 3, 3), {"stride": [3, 3]}),
    "few_filters": ((7, 60, 3, 3), {"padding": [1, 1, 1, 1]}),
    "planes": ((60, 1, 5, 5), {"groups": 60, "padding": [2, 2, 2, 2]}),
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", IMAGES)
def test_images_of_a_convolution(kernels: Path, name: str, threads: int) -> None:
    torch.manual_seed(0)
    shape, attributes = IMAGES[name]
    x, weight, bias = torch.randn(9, 60, 19, 23), torch.randn(shape), torch.randn(shape[0])
    (whole,) = run(kernels, "convolution", [x, weight, bias], threads=threads, **attributes)
    for first, last in ((0, 1), (8, 9), (2, 7)):
        part = x[first:last].contiguous()
        (actual,) = run(kernels, "convolution", [part, weight, bias], **attributes)
        assert same(actual, whole[first:last])


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_chunks_of_the_gated_delta_rule(kernels: Path, dtype: torch.dtype) -> None:
    length, dim = 50, 24
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, length, dim).to(dtype) for _ in range(3))
    decay, beta = -torch.rand(2, 3, length), torch.rand(2, 3, length)
    state = torch.randn(2, 3, dim, dim).to(dtype)

    def step(first: int, last: int, state: torch.Tensor) -> list[torch.Tensor]:
        parts = [x[:, :, first:last].contiguous() for x in (query, key, value, decay, beta)]
        return run(kernels, "gated_delta_update", [*parts, state], outputs=2, use_qk_l2_norm=1)

    whole, last = step(0, length, state)
    for chunk in (1, 2, 7, 32):
        parts, after = [], state
        for first in range(0, length, chunk):
            part, after = step(first, min(first + chunk, length), after)
            parts.append(part)
        assert same(torch.cat(parts, 1), whole), f"chunks of {chunk}"
        assert same(after, last), f"the state after chunks of {chunk}"
    (alone,) = run(
        kernels, "gated_delta_update", [query, key, value, decay, beta, state], use_qk_l2_norm=1
    )
    assert same(alone, whole), "without the state"
