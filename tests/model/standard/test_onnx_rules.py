"""ONNX's own checks, on protos whose nodes have numbers for names."""

from __future__ import annotations

import itertools

import onnx
import onnx.parser
import pytest

from coreai_onnx.model.standard.onnx_rules import (
    contradiction,
    infer,
    is_known,
    rename_generated,
    schema_faults,
    without_generated,
)

OPSETS = {"": 23}
FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def graph(text: str) -> onnx.GraphProto:
    """A graph whose nodes are numbered in their order."""
    parsed = onnx.parser.parse_graph(text)
    inner = [a.g.node for node in parsed.node for a in node.attribute if a.HasField("g")]
    for number, node in enumerate(itertools.chain(parsed.node, *inner)):
        node.name = str(number)
    return parsed


def tensor(element: int, *dims: int | str | None) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(element, dims)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("Nonsense (x)", "No Op registered for Nonsense with domain_version of 23"),
        ("Conv (x)", "schema(::Conv:22) has input size 1 not in range [min=2, max=3]"),
        ("Softmax <axis = 1.5> (x)", ("Mismatched attribute type in 'axis'. "
         "Expected: 'INT', actual: 'FLOAT'")),
        ("Neg <size = 1> (x)", "Unrecognized attribute: size for operator Neg"),
        ("Concat (x, x)", "Required attribute 'axis' is missing"),
        ('Add (x, "")', "input 1 is marked single but has an empty string in the graph"),
    ],
)  # fmt: skip
def test_nodes_that_their_schemas_refuse(node: str, message: str) -> None:
    nodes = graph(f"g (float x) => (float y) {{ a = Neg (x)  y = {node} }}").node
    (fault,) = schema_faults(nodes, OPSETS, 10)
    assert (fault.number, fault.what) == (1, message)


def test_nodes_of_other_domains_and_optional_inputs_pass() -> None:
    text = 'g (float x) => (float y) { a = com.microsoft.Gelu (x)  y = Clip (a, "", x) }'
    assert schema_faults(graph(text).node, {**OPSETS, "com.microsoft": 1}, 10) == []


@pytest.mark.parametrize(
    ("body", "number", "message"),
    [
        ("y = Add (x, i)", 0, "B has inconsistent type tensor(int64)"),
        ("a = Neg (x)  y = MatMul (a, w)", 1, "Incompatible dimensions for matrix multiplication"),
        (
            (
                "y = If (c) <then_branch = t () => (u) { u = Add (x, i) }, "
                "else_branch = e () => (v) { v = Neg (x) }>"
            ),
            0,
            "B has inconsistent type tensor(int64)",
        ),
    ],
)
def test_types_and_shapes_that_contradict(body: str, number: int, message: str) -> None:
    text = f"g (float[2, 3] x, int64[2, 3] i, float[4, 5] w, bool c) => (y) {{ {body} }}"
    found = infer(graph(text), OPSETS, 10)
    assert [(fault.outer, fault.what) for fault in found.faults] == [(number, message)]


def test_what_is_declared_is_compared() -> None:
    text = (
        "g (float[2] x) => (y) <int64[2] a, float[3] b> { a = Neg (x)  b = Abs (x)  y = Neg (x) }"
    )
    first, second = infer(graph(text), OPSETS, 10).faults
    assert first.what == "inferred dtype is float, declared dtype is int64"
    assert second.what == "Inferred shape and existing shape differ in dimension 0: (2) vs (3)"


def test_what_is_not_known_is_no_fault() -> None:
    text = "g (float[2] x) => (y) { a = Add (x, unknown)  b = Neg (unknown)  y = Neg (x) }"
    found = infer(graph(text), OPSETS, 10)
    assert found.faults == []
    assert found.types["y"] == tensor(FLOAT, 2)
    assert "b" not in found.types


def test_small_shapes_are_computed_where_that_is_asked_for() -> None:
    text = """g (float[n, 6] x, int64[1] r) => (y) <int64[1] six = {6}> {
      s = Shape <end = 1> (x)  t = Concat <axis = 0> (s, six)  y = Reshape (x, t) }"""
    assert infer(graph(text), OPSETS, 10, data_propagation=True).types["y"] == tensor(FLOAT, "n", 6)


@pytest.mark.parametrize(
    ("a", "b", "what"),
    [
        (tensor(FLOAT, 2, "n"), tensor(FLOAT, 2, 3), ""),
        (tensor(FLOAT, 2), onnx.helper.make_tensor_type_proto(FLOAT, None), ""),
        (tensor(FLOAT, 2), tensor(INT64, 2), "is float, declared as int64"),
        (tensor(FLOAT, 2), tensor(FLOAT, 2, 1), "has rank 1, declared with rank 2"),
        (tensor(FLOAT, 2), tensor(FLOAT, 3), "has 2 in dimension 0, declared with 3"),
    ],
)
def test_two_types_of_one_value(a: onnx.TypeProto, b: onnx.TypeProto, what: str) -> None:
    assert contradiction(a, b) == what


def test_sizes_that_the_inference_names_are_not_mixed_up() -> None:
    first, second = tensor(FLOAT, "unk__0", "n"), tensor(FLOAT, "unk__1", "unk__0")
    assert rename_generated([first, second], frozenset(), 5) == 7
    assert [dim.dim_param for dim in second.tensor_type.shape.dim] == ["unk__6", "unk__5"]
    kept = tensor(FLOAT, "unk__0")
    assert rename_generated([kept], frozenset({"unk__0"}), 5) == 5
    assert kept == tensor(FLOAT, "unk__0")
    assert without_generated(first) == tensor(FLOAT, None, "n")
    assert is_known(first)
    assert not is_known(onnx.TypeProto())
