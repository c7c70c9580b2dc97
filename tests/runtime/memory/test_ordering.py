"""Orders of nodes by hand."""

from __future__ import annotations

import onnx_ir as ir

from coreai_onnx.runtime.memory.ordering import apply_order, smaller_first
from tests.support.small_models import parse


def branches() -> ir.Model:
    """A large result, and a small one of a branch that is larger in between."""
    return parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[1] x) => (float[100] y) {
        large = Exp(x)
        larger = Sin(x)
        small = Cos(larger)
        y = Mul(large, small)
    }""")


def names(nodes: list[ir.Node]) -> list[str]:
    return [node.outputs[0].name or "" for node in nodes]


SIZES = {"large": 100, "larger": 101, "small": 1, "y": 100}


def test_the_branch_with_the_small_result_is_first() -> None:
    graph = branches().graph
    sizes = SIZES | {"larger": 90}
    assert names(smaller_first(graph, sizes)) == ["larger", "small", "large", "y"]


def test_ties_keep_their_order() -> None:
    graph = branches().graph
    assert names(smaller_first(graph, {})) == names(list(graph))


def test_branches_of_an_if_are_read_by_it() -> None:
    graph = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (bool go, float[1] x) => (float[1] y) {
        a = Exp(x)
        b = Sin(x)
        y = If(go) <then_branch = yes () => (float[1] t) { t = Neg(a) },
                    else_branch = no () => (float[1] e) { e = Neg(b) }>
    }""").graph
    order = smaller_first(graph, {"a": 8, "b": 4, "y": 4})
    assert names(order) == ["b", "a", "y"]
    apply_order(graph, order)
    assert names(list(graph)) == ["b", "a", "y"]
