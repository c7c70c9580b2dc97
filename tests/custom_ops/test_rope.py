"""rope through onnxruntime against its declared reference in double."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.rotary import ROPE as COMPOSITE
from tests.custom_ops.single_op import DTYPES, double, run_op
from tests.support.tolerances import assert_close

I32, I64 = torch.int32, torch.int64
TABLES = [
    # input, cos, sin
    ((2, 3, 5, 8), (5, 4), (5, 4)),
    ((2, 3, 5, 8), (2, 1, 5, 4), (2, 1, 5, 4)),
    ((2, 3, 5, 8), (2, 3, 5, 4), (3, 1, 4)),
    ((2, 3, 5, 8), (2, 1, 1, 4), (1, 5, 1)),
    ((2, 3, 5, 8), (1,), (4,)),
    ((2, 3, 5, 8), (), (2, 3, 5, 4)),
    ((3, 5, 8), (3, 1, 4), (5, 4)),
    ((2, 7, 70, 66), (70, 33), (70, 33)),
    ((3, 1, 40, 128), (3, 1, 40, 64), (3, 1, 40, 64)),
    ((500, 2, 1, 32), (500, 1, 1, 16), (500, 1, 1, 16)),
]


def expected(inputs, dtype, **attributes):
    """The reference in double; angles are what the reference computes in the op's own way."""
    return COMPOSITE.reference(*(double(x) for x in inputs), **attributes).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("shape", "cos", "sin"), TABLES)
def test_given_tables_broadcast(kernels, shape, cos, sin, interleaved, dtype):
    inputs = [torch.randn(s).to(dtype) for s in (shape, cos, sin)]
    actual = run_op(kernels, "rope", inputs, interleaved=interleaved, threads=2)
    assert_close(actual, expected(inputs, dtype, interleaved=interleaved))


@pytest.mark.parametrize("cos_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sin_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tables_of_any_float_type(kernels, dtype, sin_dtype, cos_dtype):
    cos, sin = torch.randn(3, 5, 4).to(cos_dtype), torch.randn(5, 1).to(sin_dtype)
    inputs = [torch.randn(2, 3, 5, 8).to(dtype), cos, sin]
    assert_close(run_op(kernels, "rope", inputs), expected(inputs, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", [-1, 2, 6, 8, 9])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_partial_rotation(kernels, dims, interleaved, dtype):
    half = dims // 2 if 0 < dims < 8 else 4
    inputs = [torch.randn(s).to(dtype) for s in ((2, 3, 5, 8), (5, half), (5, half))]
    actual = run_op(kernels, "rope", inputs, interleaved=interleaved, dims=dims)
    assert_close(actual, expected(inputs, dtype, interleaved=interleaved, dims=dims))


POSITIONS = [
    # shape of the input, position_ids, offset
    ((2, 3, 5, 8), None, None),
    ((3, 5, 8), None, None),
    ((2, 3, 5, 8), torch.randint(0, 99, (2, 5)), None),
    ((2, 3, 5, 8), torch.randint(-9, 99, (5,), dtype=I32), torch.tensor(7)),
    ((2, 3, 5, 8), torch.randint(0, 99, (2, 1)), None),
    ((2, 3, 5, 8), torch.randint(0, 99, (2, 3, 5)), None),
    ((2, 3, 5, 8), torch.tensor(4), None),
    ((3, 5, 8), torch.randint(0, 99, (1, 5)), None),
    ((3, 5, 8), torch.randint(0, 99, (3, 5)), None),
    ((2, 3, 5, 8), None, torch.tensor(12)),
    ((2, 3, 5, 8), None, torch.tensor([12], dtype=I32)),
    ((2, 3, 5, 8), None, torch.tensor([12, -3])),
    ((2, 3, 5, 8), None, torch.tensor([[12], [-3]])),
    ((3, 5, 8), None, torch.tensor([1, 5, 9])),
    ((1, 2, 100, 40), None, torch.tensor(100000)),
    ((2, 2, 3, 4), torch.tensor([[2**40, 2**62, 1], [0, -(2**61), 2]]), None),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("shape", "position_ids", "offset"), POSITIONS)
def test_positions(kernels, shape, position_ids, offset, interleaved, dtype):
    # Frequencies that are powers of two make every angle exact, so that the reference may compute
    # with the op's own rounding of the positions.
    freqs = 0.5 ** torch.arange(shape[-1] // 2)
    x = torch.randn(shape).to(dtype)
    inputs = [x, None, None, position_ids, freqs, offset]
    actual = run_op(kernels, "rope", inputs, interleaved=interleaved, threads=2)
    wide = x.double() if dtype == torch.float64 else x.float()
    wanted = COMPOSITE.reference(wide, *inputs[1:], interleaved=interleaved).to(dtype)
    assert_close(actual, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_default_frequencies(kernels, dtype):
    x = torch.randn(2, 3, 50, 128).to(dtype)
    actual = run_op(kernels, "rope", [x], base=500.0, scale=0.25)
    assert_close(actual, COMPOSITE.reference(x, base=500.0, scale=0.25))
    actual = run_op(kernels, "rope", [x, None, torch.randn(9)], dims=96)
    assert_close(actual, COMPOSITE.reference(x, dims=96))


@pytest.mark.parametrize(
    "freqs", [torch.rand(4), torch.rand(1), torch.rand(()), torch.rand(4).double()]
)
def test_given_frequencies(kernels, freqs):
    x = torch.randn(2, 3, 5, 8)
    actual = run_op(kernels, "rope", [x, None, None, None, freqs], scale=0.5)
    assert_close(actual, COMPOSITE.reference(x, freqs=freqs.float(), scale=0.5))


def test_infinite_frequencies_give_nan(kernels):
    x = torch.randn(1, 1, 2, 4)
    freqs = torch.tensor([float("inf"), 1.0])
    actual = run_op(kernels, "rope", [x, None, None, torch.tensor([[1, 2]]), freqs])
    assert_close(actual, COMPOSITE.reference(x, position_ids=torch.tensor([[1, 2]]), freqs=freqs))


@pytest.mark.parametrize(
    "shape", [(0, 3, 5, 8), (2, 0, 5, 8), (2, 3, 0, 8), (2, 3, 5, 0), (0, 5, 8)]
)
@pytest.mark.parametrize("given", [False, True], ids=["computed", "given"])
def test_empty(kernels, shape, given):
    table = [torch.randn(shape[-2], shape[-1] // 2)] * 2 if given else []
    assert run_op(kernels, "rope", [torch.randn(shape), *table]).shape == torch.Size(shape)


@pytest.mark.parametrize("shape", [(0, 3, 5, 1 << 40), (0, 3, 1 << 40, 8), (1 << 40, 0, 5, 8)])
def test_empty_with_a_size_beyond_memory(kernels, shape):
    inputs = [torch.empty(shape), None, None, torch.zeros(1, dtype=I64), torch.ones(1)]
    assert run_op(kernels, "rope", inputs).shape == torch.Size(shape)


def test_unknown_rank_at_load(kernels):
    x = torch.randn(2, 3, 4)
    assert_close(run_op(kernels, "rope", [x], rank_known=False), COMPOSITE.reference(x))


X = torch.ones(2, 3, 5, 8)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([torch.ones(5, 8)], {}, r"input of shape \[5, 8\] must have rank 3 or 4"),
        ([torch.ones(1, 1, 1, 5, 8)], {}, "must have rank 3 or 4"),
        ([torch.ones(3, 5, 7)], {}, r"rotated lanes must be even, is 7 .* \[3, 5, 7\]"),
        ([X], {"dims": 3}, r"rotated lanes must be even, is 3 with dims 3"),
        ([X, torch.ones(5, 8), torch.ones(5, 8)], {}, r"cos of shape \[5, 8\] does not broadcast"),
        ([X, torch.ones(5, 4), torch.ones(4, 4)], {}, r"sin of shape \[4, 4\] does not broadcast"),
        ([X, torch.ones(1, 2, 3, 5, 4), torch.ones(4)], {}, "cos of shape .* does not broadcast"),
        ([X, torch.ones(4, dtype=I64), torch.ones(4)], {}, "cos is int64, expected"),
        ([X, None, None, torch.ones(2, 5)], {}, "position_ids is float, expected int32 or int64"),
        ([X, None, None, torch.ones(3, 5, dtype=I64)], {}, r"position_ids of shape \[3, 5\] does"),
        ([X, None, None, torch.ones(2, 4, dtype=I64)], {}, r"position_ids of shape \[2, 4\] does"),
        (
            [X, None, None, torch.ones(1, 2, 3, 5, dtype=I64)],
            {},
            r"position_ids of shape \[1, 2, 3, 5\] does not broadcast",
        ),
        ([X, None, None, None, torch.ones(5)], {}, r"freqs of shape \[5\] must have shape \[4\]"),
        ([X, None, None, None, torch.ones(1, 4)], {}, r"freqs of shape \[1, 4\] must have"),
        ([X, None, None, None, torch.ones(4, dtype=I64)], {}, "freqs is int64, expected"),
        ([X, None, None, None, None, torch.ones(())], {}, "offset is float, expected int32"),
        ([X, None, None, None, None, torch.ones(3, dtype=I64)], {}, r"offset of shape \[3\] must"),
        (
            [X, None, None, None, None, torch.ones(1, 2, dtype=I64)],
            {},
            r"offset of shape \[1, 2\] must have shape \[\], \[1\], \[batch\]",
        ),
        ([X], {"dims": 1.0}, "attribute dims is 1, expected an int"),
        ([X], {"base": 1}, "attribute base is 1, expected a float"),
        ([X], {"version": 2}, "version is 2; these kernels know versions 1 to 1"),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, inputs, attributes, message):
    with pytest.raises(Exception, match=rf"rope: .*{message}"):
        run_op(kernels, "rope", inputs, **attributes)
