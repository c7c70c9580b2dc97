"""add_low_rank through onnxruntime against its declared reference in double."""

from __future__ import annotations

import re

import onnxruntime as ort
import pytest
import torch

from coreai_onnx.composites.products import add_low_rank
from tests.custom_ops.single_op import DTYPES, run_model, run_op, single_op_model
from tests.support.tolerances import assert_close

Shapes = tuple[tuple[int, ...], ...]
SHAPES: dict[str, Shapes] = {
    "one row": ((1, 1, 70), (1, 1, 33), (1, 33, 8), (1, 8, 70)),
    "many rows": ((2, 200, 70), (2, 200, 33), (1, 33, 8), (1, 8, 70)),
    "a factor for each row": ((3, 37, 70), (3, 37, 33), (3, 33, 5), (3, 5, 70)),
    "one factor for each row": ((3, 37, 70), (3, 37, 33), (33, 5), (3, 5, 70)),
    "two leading axes": ((2, 3, 4, 7), (2, 3, 4, 9), (2, 3, 9, 2), (1, 1, 2, 7)),
    "matrices": ((5, 300), (5, 400), (400, 64), (64, 300)),
    "rank 0": ((2, 5, 70), (2, 5, 33), (1, 33, 0), (1, 0, 70)),
    "rank 0, one column": ((2, 5, 70), (2, 5, 33), (1, 33, 0), (1, 0, 1)),
    "no columns of x": ((2, 5, 70), (2, 5, 0), (1, 0, 4), (1, 4, 70)),
    "no tokens": ((2, 0, 70), (2, 0, 33), (1, 33, 4), (1, 4, 70)),
}


def inputs_of(shapes: Shapes, dtype: torch.dtype) -> list[torch.Tensor]:
    y, x, down, up = (torch.randn(shape) for shape in shapes)
    return [tensor.to(dtype) for tensor in (y, x, down / 4, up / 4)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_agrees_with_the_reference(kernels, name, dtype):
    inputs = inputs_of(SHAPES[name], dtype)
    actual = run_op(kernels, "add_low_rank", inputs, threads=2)
    assert_close(actual, add_low_rank(*(x.double() for x in inputs)).to(dtype))
    if name.startswith("rank 0"):
        assert actual.equal(inputs[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_do_not_change_bits(kernels, dtype):
    inputs = inputs_of(SHAPES["a factor for each row"], dtype)
    one = run_op(kernels, "add_low_rank", inputs, threads=1)
    assert run_op(kernels, "add_low_rank", inputs, threads=3).equal(one)


def test_few_and_many_rows_have_equal_bits_if_asked_for(kernels):
    inputs = inputs_of(SHAPES["many rows"], torch.float32)
    options = ort.SessionOptions()
    options.add_session_config_entry("coreai.deterministic", "1")
    options.register_custom_ops_library(str(kernels))
    model = single_op_model("add_low_rank", inputs, {}).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (many,) = run_model(session, inputs)
    (few,) = run_model(session, [x[:, :1] if len(x) == 2 else x for x in inputs])
    assert few.equal(many[:, :1])


WRONG: dict[str, Shapes] = {
    "other tokens": ((2, 5, 7), (2, 4, 9), (1, 9, 2), (1, 2, 7)),
    "other columns of x": ((2, 5, 7), (2, 5, 8), (1, 9, 2), (1, 2, 7)),
    "other ranks": ((2, 5, 7), (2, 5, 9), (1, 9, 3), (1, 2, 7)),
    "other columns": ((2, 5, 7), (2, 5, 9), (1, 9, 2), (1, 2, 1)),
    "other rows": ((4, 5, 7), (4, 5, 9), (2, 9, 2), (1, 2, 7)),
    "more axes": ((5, 7), (5, 9), (1, 9, 2), (1, 2, 7)),
    "a vector": ((7,), (7,), (7, 2), (2, 7)),
}


@pytest.mark.parametrize("name", WRONG)
def test_refusals_name_the_op_and_the_shapes(kernels, name):
    inputs = [torch.ones(shape) for shape in WRONG[name]]
    sizes = re.escape(str(list(WRONG[name][1])))
    with pytest.raises(Exception, match=rf"add_low_rank: .*have shapes .*{sizes}.*expected"):
        run_op(kernels, "add_low_rank", inputs)
