"""Lowerings of batch and instance normalization."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lower.checking import check, op_types

BATCH = torch.export.Dim("batch", min=2)


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return values around 1."""
    return (torch.randn(shape) + 1).to(dtype)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 4, 5, 2)])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("decompose", [False, True])
def test_batch_norm(shape: tuple[int, ...], affine: bool, training: bool, decompose: bool) -> None:
    w, b = (values(3), values(3)) if affine else (None, None)
    model = check(
        lambda x, m, v, w, b: F.batch_norm(x, m.clone(), v.clone(), w, b, training, eps=1e-3),
        values(*shape),
        values(3),
        values(3).abs(),
        w,
        b,
        decompose=decompose,
    )
    assert ("BatchNormalization" in op_types(model)) is not training


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_other_dtypes(dtype: torch.dtype, training: bool) -> None:
    def norms(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = F.batch_norm(x, m.clone(), v.clone(), None, None, training)
        return one, F.instance_norm(x, m.clone(), v.clone(), use_input_stats=training)

    check(norms, values(4, 3, 5, dtype=dtype), values(3, dtype=dtype), values(3, dtype=dtype).abs())


def test_narrow_input_with_wide_statistics() -> None:
    x = values(4, 3, 5, dtype=torch.bfloat16)
    check(F.batch_norm, x, values(3), values(3).abs())


@pytest.mark.parametrize("training", [False, True])
def test_native_forms(training: bool) -> None:
    check(
        lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
        values(2, 3, 4),
    )
    functional = torch.ops.aten._native_batch_norm_legit_functional.default
    check(
        lambda x, m, v: functional(x, None, None, m, v, training, 0.3, 1e-5),
        values(2, 3, 4),
        values(3),
        values(3).abs(),
    )


def test_a_module_in_training_keeps_its_running_statistics() -> None:
    module = torch.nn.BatchNorm2d(3)
    check(
        module.train(),
        values(2, 3, 4, 5),
        dynamic_shapes=({0: BATCH},),
    )


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (1, 3, 2, 2, 2)])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("decompose", [False, True])
def test_instance_norm(shape: tuple[int, ...], affine: bool, decompose: bool) -> None:
    w, b = (values(3), values(3)) if affine else (None, None)
    x = values(*shape)
    check(lambda x, w, b: F.instance_norm(x, None, None, w, b), x, w, b, decompose=decompose)
    check(
        lambda x, m, v: F.instance_norm(x, m, v, use_input_stats=False),
        x,
        values(3),
        values(3).abs(),
        decompose=decompose,
    )


def test_dynamic_sizes() -> None:
    check(
        lambda x, m, v: (
            F.batch_norm(x, m, v),
            F.batch_norm(x, None, None, training=True),
            F.instance_norm(x),
        ),
        values(2, 3, 4),
        values(3),
        values(3).abs(),
        dynamic_shapes=({0: BATCH, 2: torch.export.Dim("length", min=2)}, None, None),
        others=[(values(5, 3, 7), values(3), values(3).abs())],
    )
