"""The report groups the nodes that keep float32 by op and reason."""

from __future__ import annotations

from coreai_onnx.quantization.half.report import DtypeReport, KeptNode


def test_nodes_are_counted_by_op_and_reason() -> None:
    kept = (KeptNode("a", "Pow", "why"), KeptNode("b", "Pow", "why"), KeptNode("c", "If", "other"))
    lines = str(DtypeReport("float16", 3, kept, 2048, 1024)).splitlines()
    assert lines[0] == "float16: 3 nodes, weights 2.0 KiB → 1.0 KiB"
    assert lines[-2].split() == ["2", "Pow", "why", "a"]
    assert lines[-1].split() == ["1", "If", "other", "c"]
    assert str(DtypeReport("float16", 3, (), 2, 1)) == "float16: 3 nodes, weights 2 B → 1 B"
