"""Inlined calls lead to their places, and compute the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import MODULE_DOMAIN
from coreai_onnx.model.provenance.places import Marked, as_read, label_of, marked
from coreai_onnx.runtime.sessions.session import Session
from tests.support.small_models import parse


def nested() -> ir.Model:
    """Two calls of a module that calls a composite, and a condition that calls it too."""
    model = parse("""<ir_version: 10, opset_import: ["": 21, "ai.coreai": 1, "ai.coreai.module": 1]>
    g (float[4] x, bool c) => (float[4] y) {
        [first] a = ai.coreai.module.Block(x)
        [second] b = ai.coreai.module.Block(a)
        [choose] y = If(c) <
            then_branch = t () => (float[4] p) { [inside] p = ai.coreai.silu(b) },
            else_branch = e () => (float[4] q) { [other] q = Neg(b) }>
    }
    <domain: "ai.coreai.module", opset_import: ["": 21, "ai.coreai": 1]>
    Block (i) => (o) { [act] s = ai.coreai.silu(i)  [plus] o = Add(s, i) }
    <domain: "ai.coreai", opset_import: ["": 21]>
    silu (i) => (o) { [sig] s = Sigmoid(i)  [mul] o = Mul(s, i) }""")
    first, second, _ = model.graph
    for node, name in ((first, "layers.0"), (second, "layers.1")):
        node.metadata_props.update({"coreai.scope": name, "coreai.class": "Block"})
        node.metadata_props["coreai.source"] = "m.py:9"
    act, plus = model.functions[MODULE_DOMAIN, "Block", ""]
    act.metadata_props.update({"coreai.scope": "module.act", "coreai.class": "SiLU"})
    plus.metadata_props.update({"coreai.class": "ModuleBody", "coreai.source": "m.py:4"})
    model.metadata_props["coreai.code"] = '{"m.py": {"4": "return act(x) + x"}}'
    return model


def everything(key: ir.OperatorIdentifier) -> bool:
    return bool(key)


def found(model: Marked) -> list[tuple[int, str, str, str]]:
    numbers = [model.number(node.name or "") for node in model.model.graph.all_nodes()]
    places = [model.places[number] for number in numbers if number is not None]
    assert len(places) == len(numbers)
    return [(place.position, place.node, place.op, place.body) for place in places]


def test_executed_nodes_lead_to_their_calls() -> None:
    places = found(marked(nested(), everything))
    assert sorted(places) == sorted([
        *(
            entry
            for at, name in enumerate(("first", "second"))
            for entry in (
                (at, f"{name}/act", "ai.coreai::silu", "sig"),
                (at, f"{name}/act", "ai.coreai::silu", "mul"),
                (at, f"{name}/plus", "Add", ""),
            )
        ),
        (2, "choose", "If", ""),
        (2, "inside", "ai.coreai::silu", "sig"),
        (2, "inside", "ai.coreai::silu", "mul"),
        (2, "other", "Neg", ""),
    ])  # fmt: skip


def test_modules_are_open_and_composites_closed_to_a_reader() -> None:
    places = found(as_read(nested()))
    assert (0, "first/act", "ai.coreai::silu", "") in places
    assert not any(body for *_, body in places)


def test_the_scopes_of_a_shared_body_are_those_of_its_caller() -> None:
    by_name = {place.node: place.where for place in as_read(nested()).places}
    assert str(by_name["second/act"]) == "layers.1.act (SiLU)   m.py:9"
    assert str(by_name["second/plus"]) == "layers.1 (Block)   m.py:4   return act(x) + x"


def test_the_copy_computes_the_same_and_the_model_is_unchanged() -> None:
    model = nested()
    before = ir.to_proto(model).SerializeToString()
    copy = marked(model, everything).model
    assert ir.to_proto(model).SerializeToString() == before
    x = np.linspace(-2, 2, 4, dtype=np.float32)
    for c in (True, False):
        (wanted,), (made,) = (Session(m, kernels=False).run(x, c) for m in (model, copy))
        np.testing.assert_array_equal(made, wanted)


def test_a_body_that_returns_its_input_keeps_the_name_of_the_output() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21, "ai.coreai": 1]>
    g (float[4] x) => (float[4] y, float[4] z) {
        [one] y = ai.coreai.same(x)  [two] n = Neg(x)  [three] z = ai.coreai.same(n)
    }
    <domain: "ai.coreai", opset_import: ["": 21]> same (i) => (i) { [unused] o = Neg(i) }""")
    copy = marked(model, everything)
    assert [value.name for value in copy.model.graph.outputs] == ["y", "z"]
    x = np.ones(4, np.float32)
    y, z = Session(copy.model, kernels=False).run(x)
    np.testing.assert_array_equal((y, z), (x, -x))
    assert {name for _, name, *_ in found(copy)} >= {"one", "two"}


def test_a_body_of_another_opset_stays_a_call() -> None:
    model = nested()
    model.functions["ai.coreai", "silu", ""].opset_imports[""] = 18
    assert (0, "first/act", "ai.coreai::silu", "") in found(marked(model, everything))


def test_names_of_fused_nodes_and_names_that_are_none() -> None:
    model = as_read(nested())
    assert model.number("#1#/MatMulAddFusion") == 1
    assert model.number("_inlfunc_silu_token_3_#2#") == 2
    assert model.number("gemm_input_reshape") is None
    assert model.number("#99#") is None


def test_a_node_without_a_name_is_called_by_its_results() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[4] x) => (float[2] y, float[2] z) { y, z = Split<num_outputs = 2>(x) }""")
    model.graph[0].name = None
    assert label_of(model.graph[0]) == "→ y, z"
