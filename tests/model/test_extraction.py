"""A module of a model as a model of its own."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.errors import StagingError
from coreai_onnx.model.extraction import extracted, modules_of
from coreai_onnx.model.interface import value_type_text
from coreai_onnx.runtime.sessions.session import Session
from tests.support.small_models import parse
from tests.support.tolerances import assert_close


def layered() -> ir.Model:
    """Two layers with a weight, a shared constant, a condition, and a composite."""
    model = parse(
        """<ir_version: 10, opset_import: ["": 21, "ai.coreai": 1]>
    g (float[batch, 2] x, bool c) => (float[batch, 2] y) <float[2] w = {1, 2}, float[2] v = {3, 4}>
    {
        [two] k = Constant<value_float = 2.0>()
        [twice] kk = Mul(k, k)
        [first] a = Add(x, w)
        [gate] b = ai.coreai.double(a)
        [scaled] d = Mul(b, kk)
        [choice] e = If(c) <then_branch = t () => (float[batch, 2] p) { p = Mul(d, v) },
                            else_branch = f () => (float[batch, 2] q) { q = Add(d, b) }>
        [last] y = Neg(e)
    }
    <domain: "ai.coreai", opset_import: ["": 21]> double (i) => (o) { o = Add(i, i) }""",
        {"coreai.range_constraints": {"batch": {"min": 1, "max": 9}, "seq": {"min": 1}}},
    )
    scopes = ["", "", "net.0", "net.1.gate", "net.1", "net.1", "net.10"]
    for node, scope in zip(model.graph, scopes, strict=True):
        if scope:
            node.metadata_props["coreai.scope"] = scope
    return model


X = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)


def test_a_module_computes_what_it_does_in_the_model() -> None:
    model = layered()
    part = extracted(model, "net.1")
    assert [value.name for value in part.graph.inputs] == ["a", "c"]
    assert [value.name for value in part.graph.outputs] == ["e"]
    assert [value_type_text(value) for value in part.graph.inputs] == [
        "float32[batch, 2]",
        "bool[]",
    ]
    assert {node.name for node in part.graph} == {"two", "twice", "gate", "scaled", "choice"}
    assert list(part.graph.initializers) == ["v"]
    for c in (True, False):
        (whole,) = Session(model, kernels=False).run(X, c)
        a = X + np.array([1, 2], np.float32)
        (inner,) = Session(part, kernels=False).run(a, c)
        np.testing.assert_array_equal(-inner, whole)


def test_the_model_is_unchanged_and_the_metadata_fits() -> None:
    model = layered()
    before = ir.to_proto(model).SerializeToString()
    part = extracted(model, "net.1")
    assert ir.to_proto(model).SerializeToString() == before
    ranges = json.loads(part.metadata_props["coreai.range_constraints"])
    assert ranges == {"batch": {"min": 1, "max": 9}}
    assert list(part.functions) == [("ai.coreai", "double", "")]
    assert list(extracted(model, "net.10").functions) == []


def test_a_prefix_is_a_whole_name() -> None:
    assert {node.name for node in extracted(layered(), "net.1").graph}.isdisjoint({"last"})
    assert [node.name for node in extracted(layered(), "net.10").graph] == ["last"]
    assert [value.name for value in extracted(layered(), "net").graph.outputs] == ["y"]
    assert len(list(extracted(layered(), "").graph)) == 7


def test_states_of_a_part() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["": 21]>
    g (float[2] x, float[2] s, float[2] r) => (float[2] y, float[2] s_out, float[2] r_out)
    <float[2] s = {1, 1}, float[2] r = {2, 2}>
    { [a] s_out = Add(s, x)  [b] r_out = Mul(r, s_out)  [c] y = Neg(r_out) }""",
        {
            "coreai.states": [
                {"input": "s", "output": "s_out"},
                {"input": "r", "output": "r_out"},
            ]
        },
    )
    for node, scope in zip(model.graph, ("one", "two", "two"), strict=True):
        node.metadata_props["coreai.scope"] = scope
    part = Session(extracted(model, "two"), kernels=False)
    assert part.states == ("r",)
    for expected in (-6.0, -18.0):
        assert part.run(np.full(2, 3, np.float32))["y"][0] == expected
    assert Session(extracted(model, "one"), kernels=False).states == ("s",)


def test_a_module_inside_of_an_externalized_one() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21, "ai.coreai.module": 1]>
    g (float[2] x) => (float[2] y) { [l0] a = ai.coreai.module.Block(x)
                                     [l1] y = ai.coreai.module.Block(a) }
    <domain: "ai.coreai.module", opset_import: ["": 21]>
    Block (i) => (o) { [act] s = Tanh(i)  [plus] o = Add(s, i) }""")
    for number, node in enumerate(model.graph):
        node.metadata_props["coreai.scope"] = f"layers.{number}"
    act = next(iter(model.functions["ai.coreai.module", "Block", ""]))
    act.metadata_props["coreai.scope"] = "module.act"
    whole = extracted(model, "layers.1")
    assert [node.op_type for node in whole.graph] == ["Block"]
    inner = extracted(model, "layers.1.act")
    assert [node.op_type for node in inner.graph] == ["Tanh"]
    assert [value.name for value in inner.graph.inputs] == ["a"]
    x = np.array([0.5, -0.5], np.float32)
    assert_close(Session(inner, kernels=False).run(x)[0], np.tanh(x))


def test_missing_types_are_inferred() -> None:
    model = layered()
    for node in model.graph:
        for value in node.outputs:
            if value.name != "y":
                value.type, value.shape = None, None
    part = extracted(model, "net.1")
    assert value_type_text(part.graph.inputs[0]) == "float32[batch, 2]"
    Session(part, kernels=False).run(X, True)


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(StagingError, match=r"'net\.2'; there are net\.1.*net\.0"):
        extracted(layered(), "net.2")
    assert modules_of(layered()) == ["net", "net.0", "net.1", "net.1.gate", "net.10"]
    bare = parse('<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) { y = Neg(x) }')
    with pytest.raises(StagingError, match="has no debug information"):
        extracted(bare, "net")
