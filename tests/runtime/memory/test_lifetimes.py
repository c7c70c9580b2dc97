"""Buffers by hand: views, results in place, sharing, and values that nothing reads."""

from __future__ import annotations

from coreai_onnx.runtime.memory.lifetimes import buffers, live_bytes
from coreai_onnx.runtime.memory.recorded_session import RecordedNode, Recording

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


def live(given: Recording, *, shared: bool = False) -> list[int]:
    return live_bytes(buffers(given, shared=shared), len(given.nodes))


def test_a_value_lives_from_its_writer_to_its_last_reader() -> None:
    given = recording("a = MatMul(x, w)", "b = Neg(a)", "z = Add(a, b)")
    assert live(given) == [8, 16, 24]
    assert [(b.values, b.first, b.last) for b in buffers(given, shared=False)] == [
        (["a"], 0, 2), (["b"], 1, 2), (["z"], 2, 2),
    ]  # fmt: skip


def test_a_view_is_the_memory_of_its_input() -> None:
    given = recording("a = MatMul(x, w)", "v = Reshape(a, w)", "b = Neg(a)", "z = Add(v, b)")
    assert live(given) == [8, 8, 16, 24]
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
    given = recording("a = MatMul(x, w)", "v = Reshape(a, w)", "b = Relu(v)", "z = Add(a, b)")
    assert live(given) == [8, 8, 16, 24]


def test_a_shared_buffer_stays_allocated_until_its_next_use() -> None:
    nodes = ("a = MatMul(x, w)", "b = Neg(a)", "c = Exp(b)", "d = Add(b, c)", "z = Neg(d)")
    given = recording(*nodes, c=100)
    assert live(given) == [8, 16, 108, 116, 16]
    assert live(given, shared=True) == [8, 16, 116, 116, 16]
    assert next(b.values for b in buffers(given, shared=True)) == ["a", "d"]


def test_a_result_that_nothing_reads_lives_to_the_end() -> None:
    given = recording("a, rest = Split(x)", "b = Neg(a)", "z = Neg(b)")
    assert live(given) == [16, 24, 24]


def test_values_that_are_no_tensors() -> None:
    given = recording("a = SequenceAt(x, w)", "z = Neg(a)")
    unknown = Recording(
        (RecordedNode("s", "", "SequenceEmpty", (), ("s",), (None,), 0), *given.nodes),
        given.inputs, given.outputs, {}, 0, 0, 0,
    )  # fmt: skip
    assert live(unknown, shared=True) == [0, 8, 16]
