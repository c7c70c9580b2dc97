"""What a fingerprint sees, and what it is blind to."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.debugging.diff.fingerprints import (
    attribute_texts,
    graph_digest,
    local_digest,
    tensor_digest,
)
from tests.support.small_models import parse

HEAD = '<ir_version: 10, opset_import: ["": 21]> g (float[n] x, float[n] w) => (float[n] y)'


def graph(body: str, head: str = HEAD) -> ir.Graph:
    return parse(f"{head} {{ {body} }}").graph


def test_tensors_differ_by_bytes_shape_and_dtype() -> None:
    arrays = [
        np.zeros((2, 3), np.float32),
        np.zeros((3, 2), np.float32),
        np.zeros((2, 3), np.int32),
    ]
    arrays.append(np.array([[0, 0, 0], [0, 0, -0.0]], np.float32))
    digests = [tensor_digest(ir.tensor(array)) for array in arrays]
    assert len(set(digests)) == 4
    assert digests[0] == tensor_digest(ir.tensor(np.zeros((2, 3), np.float32), name="other"))


def test_a_text_tensor() -> None:
    words, others = (ir.StringTensor([text], shape=ir.Shape([1])) for text in (b"a", b"b"))
    assert tensor_digest(words) != tensor_digest(others)


def test_a_tensor_without_elements() -> None:
    assert tensor_digest(ir.tensor(np.zeros((0, 2), np.float32)))


@pytest.mark.parametrize(
    ("body", "same"),
    [
        ("b = Neg(x)  a = Exp(b)  y = Add(a, w)", True),
        ("c = Exp(x)  d = Neg(c)  y = Add(d, w)", False),
        ("a = Neg(x)  b = Exp(a)  y = Add(w, b)", False),
        ("a = Neg(x)  b = Exp(a)  y = Sub(b, w)", False),
    ],
)
def test_names_mean_nothing_to_a_graph(body: str, *, same: bool) -> None:
    reference = graph_digest(graph("a = Neg(x)  b = Exp(a)  y = Add(b, w)"))
    assert (graph_digest(graph(body)) == reference) is same


def test_order_of_independent_nodes_means_nothing() -> None:
    one = graph("a = Neg(x)  b = Exp(w)  y = Add(a, b)")
    other = graph("b = Exp(w)  a = Neg(x)  y = Add(a, b)")
    assert graph_digest(one) == graph_digest(other)


def test_attributes_as_text() -> None:
    node = graph('y = Fancy<beta = 1, alpha = 0.1, gamma = [1, 2], word = "a">(x)')[0]
    assert attribute_texts(node) == {"alpha": "0.1", "beta": "1", "gamma": "[1, 2]", "word": "a"}


def test_attributes_that_hold_tensors_and_graphs() -> None:
    bodies = ("Constant<value = float[1] {1}>()", "Constant<value = float[1] {2}>()")
    ones = [attribute_texts(graph(f"y = {body}")[0])["value"] for body in bodies]
    assert ones[0] != ones[1]
    assert ones[0].startswith("float[1] ")
    head = HEAD.replace("float[n] w", "bool c")
    branches = [
        f"y = If<then_branch = t () => (float[n] a) {{ a = {op}(x) }},"
        " else_branch = e () => (float[n] b) { b = Exp(x) }>(c)"
        for op in ("Neg", "Abs")
    ]
    texts = [attribute_texts(graph(body, head)[0]) for body in branches]
    assert texts[0]["else_branch"] == texts[1]["else_branch"]
    assert texts[0]["then_branch"] != texts[1]["then_branch"]


def test_a_node_is_its_op_its_attributes_and_its_constants() -> None:
    def node(body: str, weight: str = "{1, 2}") -> ir.Node:
        head = HEAD.replace("float[n] w", "float[2] v") + f" <float[2] w = {weight}>"
        return graph(body, head)[0]

    assert local_digest(node("y = Add(x, w)")) == local_digest(node("y = Add(v, w)"))
    assert local_digest(node("y = Add(x, w)")) != local_digest(node("y = Add(x, w)", "{1, 3}"))
    assert local_digest(node("y = Add(x, w)")) != local_digest(node("y = Add(x, v)"))
    assert local_digest(node("y = Clip(x, , w)")) != local_digest(node("y = Clip(x, w)"))
