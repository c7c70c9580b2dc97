"""gather_mm through onnxruntime against its declared reference in double."""

from __future__ import annotations

import pytest
import torch
from onnx import numpy_helper

from coreai_onnx.composites.products import GATHER_MM as COMPOSITE
from tests.custom_ops.single_op import (
    DTYPES,
    double,
    open_session,
    run_model,
    run_op,
    single_op_model,
)
from tests.support.tolerances import assert_close

I32, I64 = torch.int32, torch.int64


def ids(*shape, size, dtype=I64):
    return torch.randint(0, size, shape, dtype=dtype)


CASES = {
    # lhs, rhs, lhs_indices, rhs_indices, num_batch_axes; of rhs the last two sizes are K, N
    "experts": ((9, 1, 24), (4, 24, 40), None, (9,), 0),
    "top_2": ((7, 1, 1, 24), (4, 24, 40), None, (7, 2), 0),
    "rows_of_one_expert": ((3, 5, 24), (4, 24, 40), None, (), 0),
    "both": ((6, 2, 8), (4, 8, 5), (3, 1), (1, 2), 0),
    "lhs_only": ((6, 2, 8), (8, 5), (3,), None, 0),
    "lhs_rows": ((6, 8), (8, 5), (7,), None, 0),
    "lhs_columns": ((6, 8), (3, 5), (3,), None, 1),
    "rhs_rows": ((6, 4), (9, 5), None, (4,), 0),
    "batch_axis": ((2, 1, 1, 1, 8), (2, 4, 8, 6), None, (3, 2), 1),
    "inner_axis": ((2, 3, 5, 4, 8), (2, 4, 5, 8, 6), None, (3,), 1),
    "matmul": ((2, 1, 70, 33), (3, 33, 65), None, None, 0),
    "matmul_2d": ((5, 7), (7, 3), None, None, 0),
    "many_rows": ((1, 450, 16), (2, 16, 20), None, (2,), 0),
    "deep": ((1, 13, 1100), (2, 1100, 130), None, (2,), 0),
    "wide": ((2, 3, 40), (2, 40, 2100), None, (2,), 0),
    "one_token": ((1, 1, 1, 64), (8, 64, 300), None, (1, 2), 0),
    "one_column": ((9, 1, 24), (4, 24, 1), None, (9,), 0),
    "repeated": ((1, 6, 8), (3, 8, 5), (4,), (4,), 0),
}


def make(name, dtype, *, transposed=False):
    lhs, rhs, lhs_ids, rhs_ids, axis = CASES[name]
    # Products of about 1, however many are added up.
    inputs = [torch.randn(lhs).to(dtype), (torch.randn(rhs) * rhs[-2] ** -0.5).to(dtype)]
    for x, shape in zip((lhs, rhs), (lhs_ids, rhs_ids), strict=True):
        inputs.append(None if shape is None else ids(*shape, size=x[axis]))
    if transposed and name == "rhs_rows":  # there the indices choose among the columns
        inputs[1] = torch.randn(9, 4).to(dtype)
    elif transposed:
        inputs[1] = inputs[1].transpose(-2, -1).contiguous()
    return inputs, {"num_batch_axes": axis, "transpose_rhs": int(transposed)}


def expected(inputs, dtype, **attributes):
    return COMPOSITE.reference(*(double(x) for x in inputs), **attributes).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_reference(kernels, name, transposed, dtype):
    inputs, attributes = make(name, dtype, transposed=transposed)
    actual = run_op(kernels, "gather_mm", inputs, threads=2, **attributes)
    assert_close(actual, expected(inputs, dtype, **attributes))


@pytest.mark.parametrize("rows", [*range(1, 20), 63, 64, 65, 192, 193, 256, 257, 600])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_number_of_rows(kernels, rows, transposed, dtype):
    inputs = [torch.randn(rows, 17), torch.randn(33, 17) if transposed else torch.randn(17, 33)]
    inputs = [x.to(dtype) for x in inputs]
    actual = run_op(kernels, "gather_mm", inputs, transpose_rhs=transposed)
    assert_close(actual, expected(inputs, dtype, transpose_rhs=transposed))


@pytest.mark.parametrize("index_dtype", [I32, I64])
def test_index_types(kernels, index_dtype):
    inputs = [torch.randn(4, 1, 8), torch.randn(3, 8, 5), None, ids(4, size=3, dtype=index_dtype)]
    assert_close(run_op(kernels, "gather_mm", inputs), expected(inputs, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["experts", "deep", "many_rows"])
@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_threads_do_not_change_the_result(kernels, name, transposed, dtype):
    inputs, attributes = make(name, dtype, transposed=transposed)
    one = run_op(kernels, "gather_mm", inputs, threads=1, **attributes)
    assert run_op(kernels, "gather_mm", inputs, threads=3, **attributes).equal(one)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("rows", [1, 9])
def test_nan_and_infinity_stay_in_their_row_and_column(kernels, rows, transposed, dtype):
    left, right = torch.ones(rows, 20, dtype=dtype), torch.ones(20, 70, dtype=dtype)
    left[0, 3] = float("inf")
    right[19, 69] = float("nan")
    right[0, 64] = float("-inf")
    inputs = [left, right.T.contiguous() if transposed else right]
    actual = run_op(kernels, "gather_mm", inputs, transpose_rhs=transposed)
    assert_close(actual, left @ right)


@pytest.mark.parametrize(
    ("lhs", "rhs", "index", "shape"),
    [
        ((0, 1, 8), (3, 8, 5), (0,), (0, 1, 5)),
        ((4, 0, 8), (3, 8, 5), (4,), (4, 0, 5)),
        ((4, 2, 8), (3, 8, 0), (4,), (4, 2, 0)),
        ((4, 2, 0), (3, 0, 5), (4,), (4, 2, 5)),
        ((1, 2, 8), (3, 8, 5), (0,), (0, 2, 5)),
        ((1, 2, 8), (0, 8, 5), (0,), (0, 2, 5)),
    ],
)
def test_empty(kernels, lhs, rhs, index, shape):
    inputs = [torch.randn(lhs), torch.randn(rhs), None, torch.zeros(index, dtype=I64)]
    actual = run_op(kernels, "gather_mm", inputs)
    assert_close(actual, torch.zeros(shape))


@pytest.mark.parametrize(
    ("lhs", "axes", "shape"),
    [
        ((1 << 40, 0, 8), 0, (2, 0, 5)),
        ((0, 1 << 40, 8), 1, (0, 2, 5)),
        ((1 << 40, 4, 0, 8), 1, (1 << 40, 2, 0, 5)),
        ((1 << 40, 0, 4, 8), 2, (1 << 40, 0, 2, 5)),
    ],
)
def test_empty_with_a_size_beyond_memory(kernels, lhs, axes, shape):
    # Places of the batch axes are neither gone through nor listed.
    inputs = [torch.empty(lhs), torch.randn(8, 5), torch.zeros(2, dtype=I64)]
    assert run_op(kernels, "gather_mm", inputs, num_batch_axes=axes).shape == torch.Size(shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("packed", ["1", "0"])
@pytest.mark.parametrize("name", ["experts", "top_2", "both", "matmul", "rhs_rows", "one_token"])
def test_constant_matrices(kernels, monkeypatch, name, packed, dtype):
    monkeypatch.setenv("COREAI_OPS_PACK_WEIGHTS", packed)
    inputs, attributes = make(name, dtype)
    model = single_op_model("gather_mm", inputs, attributes)
    constant = numpy_helper.from_array(inputs[1].numpy(), "in1")
    model.graph.initializer.append(constant)
    del model.graph.input[1]
    session = open_session(model, kernels, 2, "gather_mm")
    fed = [x if i != 1 else None for i, x in enumerate(inputs)]
    for _ in range(2):
        (actual,) = run_model(session, fed)
        assert_close(actual, expected(inputs, dtype, **attributes))


def test_unknown_rank_at_load(kernels):
    inputs = [torch.randn(3, 4), torch.randn(4, 5)]
    actual = run_op(kernels, "gather_mm", inputs, rank_known=False)
    assert_close(actual, expected(inputs, torch.float32))


X, W = torch.ones(5, 1, 8), torch.ones(3, 8, 4)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        (
            [X, W, None, torch.tensor([0, 1, 3, 0, 0])],
            {},
            "element 2 of input rhs_indices is 3, ex",
        ),
        (
            [X, W, None, torch.tensor([0, -1, 0, 0, 0])],
            {},
            "rhs_indices is -1, expected 0 <= index",
        ),
        ([X, W, torch.tensor([5])], {}, "element 0 of input lhs_indices is 5, expected .* < 5"),
        (
            [X, W, None, torch.zeros(1, dtype=I64)],
            {"num_batch_axes": 3},
            "num_batch_axes is 3, but",
        ),
        ([X, W, None, torch.zeros(1, dtype=I64)], {"num_batch_axes": -1}, "num_batch_axes is -1"),
        ([X, W, None, torch.zeros(1)], {}, "rhs_indices is float, expected int32 or int64"),
        (
            [X, W, None, torch.zeros(4, dtype=I64)],
            {},
            r"do not broadcast: lhs of shape \[5, 1, 8\]; rhs of shape .*, taken as \[4",
        ),
        ([X, torch.ones(3, 7, 4), None, torch.tensor([0])], {}, r"size before the last of rhs"),
        ([X, W, None, torch.tensor([0])], {"transpose_rhs": 1}, r"the last size of rhs: lhs"),
        ([torch.ones(8), W], {}, r"lhs of shape \[8\] must have rank 2"),
        ([torch.ones(5, 8), W, torch.tensor(1)], {}, r"has shape \[8\]"),
        ([X, W], {"num_batch_axes": 0.5}, "attribute num_batch_axes is 0.5, expected an int"),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, inputs, attributes, message):
    with pytest.raises(Exception, match=rf"gather_mm: .*{message}"):
        run_op(kernels, "gather_mm", inputs, **attributes)
