"""Counts of calls, operators and weights."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from coreai_onnx.composites.declaration import DOMAIN, MODULE_DOMAIN, USER_DOMAIN
from coreai_onnx.model.inventory import (
    COMPOSITE_DOMAINS,
    MOST_CALLS,
    composite_calls,
    graphs,
    initializers,
    op_histogram,
    weights,
)
from tests.support.small_models import layers_model, linear_model, parse


def test_domains_are_those_of_the_declarations() -> None:
    names = ("ai.coreai", "ai.coreai.user", "ai.coreai.module")  # files have them
    assert COMPOSITE_DOMAINS == (DOMAIN, USER_DOMAIN, MODULE_DOMAIN) == names


def test_calls_in_function_bodies_count_as_often_as_the_function_is_called() -> None:
    calls = composite_calls(layers_model())
    assert calls == {"ai.coreai.user::square": 5, "ai.coreai.module::Block": 2}
    assert list(calls) == ["ai.coreai.user::square", "ai.coreai.module::Block"]


def test_histogram_keeps_composites_and_looks_into_modules() -> None:
    assert op_histogram(layers_model()) == {"ai.coreai.user::square": 5, "Relu": 2, "Neg": 1}


def test_calls_in_subgraphs_count() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21, "ai.coreai.user": 1]>
    agraph (bool c, float[2] x) => (float[2] y)
    { y = If (c) <then_branch = t () => (float[2] a) { a = ai.coreai.user.f(x) },
                  else_branch = e () => (float[2] b) { b = Neg(x) }> }
    <domain: "ai.coreai.user", opset_import: ["": 21]> f (x) => (y) { y = Abs(x) }""")
    assert composite_calls(model) == {"ai.coreai.user::f": 1}
    assert op_histogram(model) == {"If": 1, "Neg": 1, "ai.coreai.user::f": 1}


def test_weights_that_are_shared_count_once() -> None:
    model = linear_model(8, 64)
    elements, size = weights(model)
    assert (elements, size) == (8 * 64 + 64 + 2, 4 * (8 * 64 + 64) + 16)
    again = ir.Value(name="tied", const_value=model.graph.initializers["weight"].const_value)
    model.graph.initializers.add(again)
    assert weights(model) == (elements, size)


def test_graphs_are_those_of_functions_and_of_defaults_as_well() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21, "f": 1]>
    g (float[n] x, bool c) => (float[n] y) { y = f.f(x, c) }
    <domain: "f", opset_import: ["": 21]>
    f (x, c) => (y) {
      y = If<then_branch = t () => (float[n] p) <float[1] w = {1.0}> { p = Add(x, w) },
             else_branch = e () => (float[n] q) { q = Relu(x) }>(c) }""")
    function = next(iter(model.functions.values()))
    default = parse('<ir_version: 10, opset_import: ["": 21]> d () => () <float[1] v = {1.0}> {}')
    function.attributes["body"] = ir.AttrGraph("body", default.graph)
    names = [graph.name for graph in graphs(model) if graph.name]
    assert sorted(names) == ["d", "e", "g", "t"]
    assert sorted(value.name for value in initializers(model)) == ["v", "w"]
    assert weights(model) == (2, 8)


@pytest.mark.parametrize(
    ("body", "count"),
    [("a = ai.coreai.module.f{0} (x)  y = Neg (a)", 1),
     ("a = ai.coreai.module.f{0} (x)  y = ai.coreai.module.f{0} (a)", MOST_CALLS)],
)  # fmt: skip
def test_functions_that_call_functions_are_counted_to_any_depth(body: str, count: int) -> None:
    function = '<domain: "ai.coreai.module", opset_import: ["": 21, "ai.coreai.module": 1]> '
    bodies = [f"{function} f{i} (x) => (y) {{ {body.format(i + 1)} }}" for i in range(2000)]
    model = parse(
        '<ir_version: 10, opset_import: ["": 21, "ai.coreai.module": 1]>\n'
        "main (float x) => (float y) { y = ai.coreai.module.f0 (x) }\n"
        + "\n".join([*bodies, f"{function} f2000 (x) => (y) {{ y = Abs (x) }}"])
    )
    assert op_histogram(model)["Abs"] == count
    assert composite_calls(model)["ai.coreai.module::f2000"] == count
    assert composite_calls(model)["ai.coreai.module::f0"] == 1
