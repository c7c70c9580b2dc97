"""The body of gathered products: matrices are read where rows need them, never copied per row."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coreai_onnx.bodies import composite_functions
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import set_dims
from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


def case(tokens: int, *, transposed: int = 0, experts: int = 4) -> Case:
    matrices = (experts, 6, 8) if transposed else (experts, 8, 6)
    return Case(
        "gather_mm",
        ((tokens, 1, 1, 8), matrices, None, (tokens, 2)),
        {"transpose_rhs": transposed},
        {3: torch.int64},
        limit=experts,
    )


@pytest.mark.parametrize("transposed", [0, 1])
def test_one_body_serves_every_number_of_tokens_and_experts(transposed: int) -> None:
    model = case(5, transposed=transposed).model(torch.float32, dynamic=True)
    for tokens, experts in ((5, 4), (300, 4), (2, 60), (0, 3)):
        other = case(tokens, transposed=transposed, experts=experts)
        inputs = other.inputs(torch.float32)
        assert_close(run_model(model, inputs)[0], other.expected(inputs))


def test_experts_without_tokens_are_not_multiplied() -> None:
    some = case(6)
    inputs = some.inputs(torch.float32)
    x, matrices, _, chosen = inputs
    assert x is not None
    assert matrices is not None
    assert chosen is not None
    chosen[:] = 2
    matrices[[0, 1, 3]] = float("nan")
    (actual,) = run_model(some.model(torch.float32, dynamic=True), inputs)
    assert_close(actual, some.expected(inputs))
    assert np.isfinite(actual).all()


def test_an_index_outside_is_an_error() -> None:
    some = case(2)
    inputs = some.inputs(torch.float32)
    assert inputs[3] is not None
    inputs[3][0, 0] = 4
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="bounds"):
        run_model(some.model(torch.float32, dynamic=True), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dtypes_up_to_float32_share_a_body(dtype: torch.dtype) -> None:
    text = [
        ir.to_proto(next(iter(case(3).model(d, dynamic=True).functions.values())))
        for d in (torch.float32, dtype)
    ]
    assert text[0].SerializeToString() == text[1].SerializeToString()


def test_matrices_are_read_one_by_one() -> None:
    """Outside the loop only their shape is looked at; a turn takes the matrix of one number."""
    (function,) = case(5).model(torch.float32, dynamic=True).functions.values()
    stored = function.inputs[1]
    assert {n.op_type for n in stored.consumers()} == {"Shape", "Reshape"}
    (stacked,) = (n.outputs[0] for n in stored.consumers() if n.op_type == "Reshape")
    (reader,) = stacked.consumers()
    (loop,) = (n for n in function if n.op_type == "Loop")
    assert reader.op_type == "Gather"
    assert reader.graph is loop.attributes["body"].as_graph()


def test_bodies_that_differ_are_named_by_what_they_do() -> None:
    calls = CompositeCalls()
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    op = OpBuilder(Scope(graph, Names()), 23, calls)

    def value(shape: tuple[int, ...], dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        return set_dims(ir.Value(name="x", type=ir.TensorType(dtype)), shape)

    index = value((5,), ir.DataType.INT64)
    x, w = value((5, 1, 8)), value((5, 8, 8))
    op.composite("gather_mm", [x, w])
    op.composite("gather_mm", [x, w, index])
    op.composite("gather_mm", [x, w, None, index])
    op.composite("gather_mm", [x, w, None, index], transpose_rhs=1)
    op.composite("gather_mm", [x, w, index, index])
    op.composite("gather_mm", [x, value((9, 8)), None, value((8,), ir.DataType.INT64)])
    op.composite("gather_mm", [x, value((2, 5, 8, 8)), None, index], num_batch_axes=1)
    names = [f.name for f in composite_functions(calls.calls, 23)]
    words = ["", ".lhs_indices", ".rhs_indices", ".rhs_indices_transposed", ".both_indices"]
    assert names == [f"gather_mm{w}" for w in (*words, ".rhs_indices_rows")]
    assert calls.calls[-1].node.op_type == "gather_mm.rhs_indices"


@st.composite
def any_case(draw: st.DrawFn) -> Case:
    """Operands of any rank, with indices of any rank on one of their leading axes."""
    axis = draw(st.integers(0, 1))
    small = st.integers(1, 4)
    rows, lanes, columns = draw(small), draw(small), draw(small)
    index = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    before = (draw(small),) * axis
    experts = draw(st.integers(1, 5))
    turned = draw(st.integers(0, 1))
    rhs = (*before, experts, *((columns, lanes) if turned else (lanes, columns)))
    batch = tuple(draw(st.sampled_from((1, d))) for d in (*before, *index))
    kept = draw(st.integers(0, len(batch)))
    lhs = (*batch[len(batch) - kept :], rows, lanes)
    return Case(
        "gather_mm",
        (lhs, rhs, None, index),
        {"num_batch_axes": axis, "transpose_rhs": turned},
        {3: torch.int64},
        limit=experts,
    )


@given(any_case())
def test_any_ranks_and_broadcasts(some: Case) -> None:
    inputs = some.inputs(torch.float32)
    model = some.model(torch.float32, dynamic=True)
    assert_close(run_model(model, inputs)[0], some.expected(inputs))
