"""Tests of lifetimes and origins of buffers, and the nodes that overwrite one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from coreai_onnx.model.provenance.debug_info import SOURCE
from coreai_onnx.runtime.memory.lifetimes import (
    IN_PLACE,
    VIEWS,
    Origins,
    buffers,
    is_view,
    live_bytes,
    overwritten,
)
from coreai_onnx.runtime.memory.recorded_session import (
    RecordedNode,
    Recording,
    recorded_session,
)
from tests.support.small_models import parse

SHAPE = (2, "n")


def recording(*nodes: str, outputs: str = "z", **sizes: int) -> Recording:
    """Build a recording of nodes written as ``y = Op(a, b)``; results have 8 bytes by default."""
    found = []
    for text in nodes:
        made, call = text.split(" = ")
        op, rest = call.rstrip(")").split("(")
        names = tuple(made.split(", "))
        found.append(
            RecordedNode(
                text, "", op, tuple(rest.split(", ")), names,
                tuple(sizes.get(name, 8) for name in names), 0,
            )
        )  # fmt: skip
    shapes = {name: SHAPE for node in found for name in node.outputs}
    return Recording(
        tuple(found), frozenset({"x", "w"}), frozenset(outputs.split()), shapes, 0, 0, 0
    )


def live(one: Recording, *, shared: bool = False) -> list[int]:
    return live_bytes(buffers(one, shared=shared), len(one.nodes))


def test_a_value_lives_from_its_writer_to_its_last_reader() -> None:
    one = recording("a = MatMul(x, w)", "b = Neg(a)", "z = Add(a, b)")
    assert live(one) == [8, 16, 24]
    assert [(b.values, b.first, b.last) for b in buffers(one, shared=False)] == [
        (["a"], 0, 2), (["b"], 1, 2), (["z"], 2, 2),
    ]  # fmt: skip


def test_a_view_is_the_memory_of_its_input() -> None:
    one = recording("a = MatMul(x, w)", "v = Reshape(a, w)", "b = Neg(a)", "z = Add(v, b)")
    assert live(one) == [8, 8, 16, 24]
    of_an_input = recording("v = Reshape(x, w)", "z = Neg(v)")
    assert live(of_an_input) == [0, 8]
    an_output = recording("a = MatMul(x, w)", "z = Reshape(a, w)")
    assert live(an_output) == [8, 16]


def test_a_result_is_written_over_an_input_without_other_readers() -> None:
    assert live(recording("a = MatMul(x, w)", "b = Relu(a)", "z = Neg(b)")) == [8, 8, 16]
    read_later = recording("a = MatMul(x, w)", "b = Relu(a)", "z = Add(a, b)")
    assert live(read_later) == [8, 16, 24]
    of_another_size = recording("a = MatMul(x, w)", "b = Cast(a)", "z = Neg(b)", b=4)
    assert live(of_another_size) == [8, 12, 12]
    an_output = recording("a = MatMul(x, w)", "b = Relu(a)", "z = Neg(b)", outputs="a z")
    assert live(an_output) == [8, 16, 24]


def test_a_view_of_a_value_that_is_read_later_is_not_overwritten() -> None:
    one = recording("a = MatMul(x, w)", "v = Reshape(a, w)", "b = Relu(v)", "z = Add(a, b)")
    assert live(one) == [8, 8, 16, 24]


def test_a_shared_buffer_stays_allocated_until_its_next_use() -> None:
    nodes = ("a = MatMul(x, w)", "b = Neg(a)", "c = Exp(b)", "d = Add(b, c)", "z = Neg(d)")
    one = recording(*nodes, c=100)
    assert live(one) == [8, 16, 108, 116, 16]
    assert live(one, shared=True) == [8, 16, 116, 116, 16]
    assert next(b.values for b in buffers(one, shared=True)) == ["a", "d"]


def test_a_result_that_nothing_reads_lives_to_the_end() -> None:
    one = recording("a, rest = Split(x)", "b = Neg(a)", "z = Neg(b)")
    assert live(one) == [16, 24, 24]


def test_values_that_are_no_tensors() -> None:
    one = recording("a = SequenceAt(x, w)", "z = Neg(a)")
    unknown = Recording(
        (RecordedNode("s", "", "SequenceEmpty", (), ("s",), (None,), 0), *one.nodes),
        one.inputs, one.outputs, {}, 0, 0, 0,
    )  # fmt: skip
    assert live(unknown, shared=True) == [0, 8, 16]


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
    with recorded_session(model, kernels=False, threads=1) as recorded:
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


@pytest.fixture
def model() -> ir.Model:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[2] x) => (float[2] y) { a = Neg(x)  y = Abs(a) }""")
    for line, node in enumerate(model.graph, 1):
        node.metadata_props[SOURCE] = f"model.py:{line}"
    return model


def ran(*nodes: tuple[str, str, str]) -> Recording:
    """Build a recording of nodes: name, input and result."""
    made = [
        RecordedNode(name, "", "Op", (read,), (result,), (8,), 0) for name, read, result in nodes
    ]
    return Recording(tuple(made), frozenset({"x"}), frozenset({"y"}), {}, 0, 0, 0)


def test_a_value_of_the_model(model: ir.Model) -> None:
    assert Origins(model).of("a", ran(("n", "x", "a"), ("m", "a", "y"))).source == "model.py:1"


def test_a_value_in_the_body_of_a_function_belongs_to_what_is_computed_from_it(
    model: ir.Model,
) -> None:
    recording = ran(("n", "x", "inner"), ("o", "x", "other"), ("m", "inner", "y"))
    assert Origins(model).of("inner", recording).source == "model.py:2"
    assert Origins(model).of("other", recording).source == ""


def test_a_convolution_in_another_layout(model: ir.Model) -> None:
    recording = ran(("a_nchwc", "x", "token"), ("m", "token", "y"))
    assert Origins(model).of("token", recording).source == "model.py:1"
