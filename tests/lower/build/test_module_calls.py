from __future__ import annotations

import onnx_ir as ir
import pytest

from coreai_onnx.composites import COMPOSITES
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.composite_calls import CompositeCalls
from coreai_onnx.lower.build.module_calls import call_of_module, calls_from_modules
from coreai_onnx.lower.build.scope import Names, Scope
from coreai_onnx.lower.build.values import Value, maybe_dims, set_dims


def called(composite: str, *shapes: tuple[int, ...]) -> tuple[list[str], list[Value]]:
    """Return the op types of the nodes of a call, and its outputs."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    op = OpBuilder(Scope(graph, Names()), 23, CompositeCalls())
    inputs = [
        ir.Value(name=f"i{k}", type=ir.TensorType(ir.DataType.FLOAT)) for k in range(len(shapes))
    ]
    for value, shape in zip(inputs, shapes, strict=True):
        set_dims(value, shape)
    outputs = call_of_module(op, COMPOSITES[composite], inputs, {})
    return [node.op_type for node in graph], outputs


def test_a_composite_is_called_as_it_is_declared() -> None:
    ops, (result,) = called("rms_norm", (2, 5, 8), (8,))
    assert ops == ["rms_norm"]
    assert maybe_dims(result) == (2, 5, 8)


@pytest.mark.parametrize("lead", [(), (2,), (3, 2)])
def test_attention_of_any_rank_is_called_with_rank_4(lead: tuple[int, ...]) -> None:
    ops, (result,) = called(
        "scaled_dot_product_attention", (*lead, 4, 5, 8), (*lead, 2, 7, 8), (*lead, 2, 7, 6)
    )
    assert "scaled_dot_product_attention" in ops
    assert maybe_dims(result) == (*lead, 4, 5, 6)


def test_a_composite_has_one_form() -> None:
    with pytest.raises(AssertionError, match="has a form already"):
        calls_from_modules("scaled_dot_product_attention")(lambda *_: [])
