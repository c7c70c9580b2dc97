"""Whether onnxruntime's results take the memory of an input, operator by operator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from coreai_onnx.runtime.memory.in_place import IN_PLACE, VIEWS, is_view, overwritten
from coreai_onnx.runtime.memory.recorded_session import RecordedNode, RecordedSession, Recording

_ONES = np.ones((64, 64), np.float32)
_ARGUMENTS = {
    "Cast": ("(x)", "<to = 6>"),
    "Reshape": ("(x, shape)", ""),
    "ScatterElements": ("(x, index, row)", ""),
    "Squeeze": ("(x)", ""),
    "Unsqueeze": ("(x, zero)", ""),
}


def run(op: str) -> Recording:
    """Run an operator between two others, without onnxruntime's optimizations of it."""
    arguments, attributes = _ARGUMENTS.get(op, ("(x)", ""))
    zeros, ones = ", ".join("0" * 64), ", ".join("1" * 64)
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[64, 64] given) => (float total)
    <int64[1] shape = {{4096}}, int64[1] zero = {{0}},
     int64[1, 64] index = {{{zeros}}}, float[1, 64] row = {{{ones}}}>
    {{
        x = Transpose<perm = [1, 0]>(given)
        y = {op}{attributes}{arguments}
        wide = Cast<to = 11>(y)
        narrow = Cast<to = 1>(wide)
        total = ReduceSum<keepdims = 0>(narrow)
    }}""")
    with RecordedSession(model, kernels=False, threads=1) as recorded:
        recorded.session.run(_ONES)
        return recorded.recording()


def added(recording: Recording, op: str) -> int:
    """Return the bytes that a node allocated."""
    nodes = recording.nodes
    place = next(i for i, node in enumerate(nodes) if node.op == op)
    after, before = nodes[place].in_use, nodes[place - 1].in_use
    assert after is not None
    assert before is not None
    return after - before


@pytest.mark.parametrize("op", sorted((IN_PLACE | VIEWS) - {"Celu", "Identity"}))
def test_operators_of_the_tables(op: str) -> None:
    """onnxruntime removes an Identity, and runs Celu as a function."""
    assert added(run(op), op) <= 0


@pytest.mark.parametrize("op", ["Abs", "Ceil", "Erf", "Exp", "Neg", "Sqrt", "Tan"])
def test_operators_that_are_in_neither_table(op: str) -> None:
    assert op not in IN_PLACE | VIEWS
    assert added(run(op), op) == _ONES.nbytes


def node(op: str, domain: str = "", inputs: tuple[str, ...] = ("a", "b", "c", "d")) -> RecordedNode:
    return RecordedNode("n", domain, op, inputs, ("y",), (4,), 0)


def test_kernels_and_convolutions() -> None:
    assert overwritten(node("rope", "ai.coreai")) == "a"
    assert overwritten(node("swiglu.bfloat16", "ai.coreai")) == "a"
    assert overwritten(node("rms_norm", "ai.coreai")) is None
    assert overwritten(node("Conv", "com.microsoft.nchwc")) == "d"
    assert overwritten(node("Conv", "com.microsoft.nchwc", ("a", "b", "c"))) is None
    assert overwritten(node("Relu", "my.ops")) is None
    assert is_view(node("Reshape"))
    assert not is_view(node("Reshape", "my.ops"))
