from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.why import Why


def test_misses_are_counted_by_reason_and_op_in_order() -> None:
    why = Why()
    assert why("b is open", gs.Node("Add", name="one")) is False
    why("a is open", gs.Node("Add", name="two"))
    why("b is open", gs.Node("Add", name="three"))
    why("b is open", gs.Node("Mul", outputs=[gs.Variable("out")]))
    found = [(m.reason, m.op, m.node, m.count) for m in why.misses]
    assert found == [
        ("b is open", "Add", "one", 2),
        ("a is open", "Add", "two", 1),
        ("b is open", "Mul", "out", 1),
    ]
