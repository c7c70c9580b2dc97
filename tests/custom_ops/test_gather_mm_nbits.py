"""gather_mm_nbits through onnxruntime against its declared reference."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from coreai_onnx.composites.few_bits import GATHER_MM_NBITS as COMPOSITE
from tests.custom_ops.single_op import DTYPES, double, run_op
from tests.lower.checking import open_model, run_session
from tests.support.tolerances import assert_close
from tools.bench.composite_model import composite_model

NAME = "gather_mm_nbits"
F32, I64 = torch.float32, torch.int64


def make(lhs, experts, index, columns=49, group=24, bits=4, rounding=0, dtype=F32, zeros=None):
    """Return inputs whose products are of about 1, and attributes."""
    groups = lhs[-1] // group
    codes = torch.randint(0, 256, (experts, columns, groups, group * bits // 8), dtype=torch.uint8)
    scales = torch.rand(experts, columns, groups) * max(lhs[-1], 1) ** -0.5 / (1 << bits)
    chosen = torch.randint(0, max(experts, 1), index)
    inputs = [torch.randn(*lhs).to(dtype), codes, scales.half(), chosen]
    if zeros is not None:
        inputs.append(torch.randint(0, 1 << bits, (experts, columns, groups)).to(zeros))
    return inputs, {"bits": bits, "group_size": group, "activation_bits": rounding}


def expected(inputs, dtype, **attributes):
    """Return the reference, in double if it does not round activations."""
    if attributes["activation_bits"]:
        return COMPOSITE.reference(*inputs, **attributes).to(dtype)
    wide = [double(inputs[0]), inputs[1], double(inputs[2]), inputs[3]]
    wide += [None if x is None else double(x) for x in inputs[4:]]
    return COMPOSITE.reference(*wide, **attributes).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize("bits", [8, 4, 3, 2])
def test_agrees_with_the_reference(kernels, bits, rounding, dtype):
    for lhs, index in (((1, 1, 1, 72), (1, 2)), ((70, 1, 1, 72), (70, 2)), ((9, 5, 72), (9,))):
        inputs, attributes = make(lhs, 5, index, 130, 24, bits, rounding, dtype, torch.uint8)
        actual = run_op(kernels, NAME, inputs, threads=2, **attributes)
        assert_close(actual, expected(inputs, dtype, **attributes))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rounding", [0, 8])
def test_a_palette(kernels, rounding, dtype):
    inputs, attributes = make((20, 1, 48), 3, (20,), rounding=rounding, dtype=dtype)
    inputs += [None, torch.linspace(-8, 8, 16)]
    actual = run_op(kernels, NAME, inputs, **attributes)
    assert_close(actual, expected(inputs, dtype, **attributes))


@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize("tokens", [*range(1, 14), 64, 191, 192, 193, 400])
def test_every_number_of_rows_of_an_expert(kernels, tokens, rounding):
    inputs, attributes = make((tokens + 1, 1, 48), 3, (tokens + 1,), rounding=rounding)
    inputs[3][:] = 2
    inputs[3][tokens // 2] = 0
    actual = run_op(kernels, NAME, inputs, **attributes)
    assert_close(actual, expected(inputs, F32, **attributes))


@pytest.mark.parametrize(
    ("lhs", "index"),
    [((3, 48), ()), ((6, 2, 48), (6,)), ((2, 1, 3, 48), (4,)), ((4, 2, 1, 48), (4, 2)),
     ((1, 1, 48), (2, 3)), ((3, 1, 2, 48), (3, 1))],
)  # fmt: skip
def test_leading_axes_broadcast(kernels, lhs, index):
    inputs, attributes = make(lhs, 4, index)
    for chosen in (inputs[3], inputs[3].to(torch.int32)):
        inputs[3] = chosen
        actual = run_op(kernels, NAME, inputs, **attributes)
        assert_close(actual, expected(inputs, F32, **attributes))


@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize("tokens", [1, 40])
def test_constant_weights_are_packed_once(kernels, tokens, rounding):
    shape = (tokens, 1, 1, 96)
    inputs, attributes = make(shape, 4, (tokens, 2), 100, 32, 4, rounding, zeros=torch.uint8)
    proto = composite_model(NAME, inputs, attributes, constants=(1, 2, 4))
    session = open_model(ir.from_proto(proto), library=kernels)
    fed = [inputs[0], inputs[3]]
    actual = run_session(session, fed)[0]
    assert torch.from_numpy(actual).equal(run_op(kernels, NAME, inputs, **attributes))
    assert run_session(session, fed)[0].tobytes() == actual.tobytes()


@pytest.mark.parametrize("rounding", [0, 8])
def test_threads_do_not_change_the_result(kernels, rounding):
    inputs, attributes = make((130, 1, 1, 96), 4, (130, 2), 300, rounding=rounding)
    one = run_op(kernels, NAME, inputs, threads=1, **attributes)
    assert run_op(kernels, NAME, inputs, threads=3, **attributes).equal(one)


@pytest.mark.parametrize("rounding", [0, 8])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row_and_expert(kernels, wrong, rounding):
    inputs, attributes = make((6, 1, 48), 3, (6,), rounding=rounding)
    inputs[3][:] = torch.tensor([0, 1, 1, 1, 0, 1])
    inputs[0][2, 0, 5] = wrong
    inputs[2][2] = wrong  # an expert that no index selects
    actual = run_op(kernels, NAME, inputs, **attributes)
    assert not actual[2].isfinite().any()
    others = [0, 1, 3, 4, 5]
    assert_close(actual[others], expected(inputs, F32, **attributes)[others])


@pytest.mark.parametrize("rounding", [0, 8])
def test_empty(kernels, rounding):
    cases = (
        ((0, 1, 48), 3, (0,), 5),
        ((2, 0, 48), 3, (2,), 5),
        ((2, 1, 48), 3, (2,), 0),
        ((2, 1, 0), 3, (2,), 5),
        ((1, 2, 48), 3, (0,), 5),
        ((1, 2, 48), 0, (0,), 5),
    )
    for lhs, experts, index, columns in cases:
        inputs, attributes = make(lhs, experts, index, columns, rounding=rounding)
        actual = run_op(kernels, NAME, inputs, **attributes)
        batch = torch.broadcast_shapes(lhs[:-2], index)
        assert_close(actual, torch.zeros(*batch, lhs[-2], columns))


def test_empty_with_a_size_beyond_memory(kernels):
    inputs, attributes = make((1, 1, 48), 3, (1,))
    inputs[0] = torch.empty(1 << 40, 1, 0, 48)
    assert run_op(kernels, NAME, inputs, **attributes).shape == (1 << 40, 1, 0, 49)


@pytest.mark.parametrize(
    ("change", "attributes", "message"),
    [
        ({}, {"bits": 7}, "attribute bits is 7, expected 8, 6, 5, 4, 3 or 2"),
        ({}, {"activation_bits": 4}, "attribute activation_bits is 4, expected 0 or 8"),
        ({}, {"group_size": 0}, "attribute group_size is 0"),
        ({0: torch.randn(3, 1, 65)}, {}, r"\[3, 1, 65\], expected a last size of 2 groups of 24"),
        ({0: torch.randn(48)}, {}, r"lhs of shape \[48\] must have rank 2"),
        ({0: torch.randn(4, 1, 48)}, {}, r"do not broadcast: lhs of .*; indices of shape \[3\]"),
        ({1: torch.zeros(49, 2, 12, dtype=torch.uint8)}, {}, r"\[49, 2, 12\], expected \[experts"),
        ({1: torch.zeros(5, 49, 2, 11, dtype=torch.uint8)}, {}, r"N, groups, 12\]"),
        ({1: torch.zeros(5, 49, 2, 12)}, {}, "input codes is float, expected uint8"),
        ({2: torch.zeros(5, 49, 3)}, {}, r"input scales has shape \[5, 49, 3\], expected \[5, 49"),
        ({2: torch.zeros(5, 49, 2, dtype=torch.int32)}, {}, "input scales is int32"),
        ({3: torch.tensor([0, 5, 1])}, {}, "element 1 of input indices is 5, expected 0 <= i"),
        ({3: torch.tensor([0, -1, 1])}, {}, "element 1 of input indices is -1"),
        ({3: torch.tensor([0, 1 << 62, 1])}, {}, "element 1 of input indices is 46116860184273"),
        ({3: torch.zeros(3)}, {}, "input indices is float, expected int32 or int64"),
        ({4: torch.zeros(4, 49, 2)}, {}, r"input zero_points has shape \[4, 49, 2\]"),
        ({5: torch.zeros(15)}, {}, r"input palette has shape \[15\], expected \[16\]"),
        ({4: torch.zeros(5, 49, 2), 5: torch.zeros(16)}, {}, "excludes input zero_points"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_an_error(kernels, change, attributes, message):
    inputs, right = make((3, 1, 48), 5, (3,))
    given = [*inputs, None, None]
    for place, tensor in change.items():
        given[place] = tensor
    with pytest.raises(Exception, match=f"{NAME}: .*{message}"):
        run_op(kernels, NAME, given, **(right | attributes))
