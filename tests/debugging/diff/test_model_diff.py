"""Tests of differences of two models, as text and as a page."""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.debugging.diff.model_diff import Change, ModelDiff, diff_models, page
from coreai_onnx.errors import LoadError
from coreai_onnx.model.pages.graph_page import graph_page
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import layers_model, linear_model, parse


def changes(old: ir.Model, new: ir.Model, *, weights: bool = True) -> tuple[Change, ...]:
    return diff_models(
        OnnxProgram({"main": old}), OnnxProgram({"main": new}), weights=weights
    ).changes


def named(body: str, extra: str = "") -> ir.Model:
    return parse(f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[n] x) => (float[n] y) {extra} {{ {body} }}""")


def test_a_model_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": linear_model()}).save(path)
    diff = diff_models(path, OnnxProgram({"main": linear_model()}))
    assert diff.same
    assert str(diff) == "the models are the same"


def test_names_of_values_and_node_order_mean_nothing() -> None:
    one = named("a = Neg(x)  b = Exp(x)  y = Add(a, b)")
    assert changes(one, named("e = Exp(x)  f = Neg(x)  y = Add(f, e)")) == ()


def test_the_interface() -> None:
    other = parse("""<ir_version: 10, opset_import: ["": 22]>
    g (float16[n] x, int64[] k) => (float[n] y) { y = Neg(x) }""")
    assert changes(named("y = Neg(x)"), other) == (
        Change("model", "changed", "opset ai.onnx", "21", "22"),
        Change("interface", "changed", "input x", "float32[n]", "float16[n]"),
        Change("interface", "added", "input k", "", "int64[]"),
    )


def test_operators_and_nodes() -> None:
    old, new = named("a = Neg(x)  y = Exp(a)"), named("a = Abs(x)  y = Exp(a)")
    old.graph[0].name, new.graph[0].name = "first", "first"
    found = changes(old, new)
    assert Change("operators", "removed", "Neg", "1x") in found
    assert Change("operators", "added", "Abs", "", "1x") in found
    assert Change("nodes", "removed", "first", "Neg") in found
    assert Change("nodes", "added", "first", "", "Abs") in found
    assert Change("nodes", "changed", "(Exp → y) inputs", "a", "a") in found
    assert len(found) == 5


def test_an_attribute() -> None:
    old, new = (named(f"y = Elu<alpha = {value}>(x)") for value in (1.0, 2.0))
    old.graph[0].name, new.graph[0].name = "act", "act"
    assert changes(old, new) == (Change("nodes", "changed", "act [alpha]", "1.0", "2.0"),)


def test_a_rewired_node() -> None:
    old = named("a = Neg(x)  b = Exp(a)  y = Sub(a, b)")
    new = named("a = Neg(x)  b = Exp(a)  y = Sub(b, a)")
    assert changes(old, new) == (Change("nodes", "changed", "(Sub → y) inputs", "a, b", "b, a"),)


def test_functions() -> None:
    old, new = layers_model(), layers_model()
    square = new.functions["ai.coreai.user", "square", ""]
    square[0].op_type = "Add"
    assert changes(old, new) == (
        Change("functions", "changed", "ai.coreai.user::square", "1 nodes", "1 nodes"),
    )
    del new.functions["ai.coreai.module", "Block", ""]
    assert Change("functions", "removed", "ai.coreai.module::Block", "3 nodes") in changes(old, new)
    assert Change("functions", "added", "ai.coreai.module::Block", "", "3 nodes") in changes(
        new, old
    )


def test_weights_by_contents() -> None:
    old, new = linear_model(seed=0), linear_model(seed=1)
    found = changes(old, new)
    assert [(c.section, c.kind, c.name) for c in found] == [
        ("weights", "changed", "bias"),
        ("weights", "changed", "weight"),
    ]
    assert changes(old, new, weights=False) == ()


def test_a_renamed_weight() -> None:
    old, new = linear_model(), linear_model()
    value = new.graph.initializers.pop("bias")
    value.name = "offset"
    new.graph.initializers["offset"] = value
    assert changes(old, new) == (Change("weights", "renamed", "bias", "bias", "offset"),)


def test_weights_that_come_and_go() -> None:
    old = named("y = Add(x, w)", "<float[1] w = {1.0}>")
    new = named("y = Add(x, v)", "<float[1] v = {2.0}>")
    found = [change for change in changes(old, new) if change.section == "weights"]
    assert found == [
        Change("weights", "added", "v", "", "float[1]"),
        Change("weights", "removed", "w", "float[1]"),
    ]


def test_entrypoints() -> None:
    both = OnnxProgram({"main": linear_model(), "other": linear_model()})
    diff = diff_models(OnnxProgram({"main": linear_model()}), both)
    assert diff.changes == (Change("model", "added", "entrypoint other"),)


def test_text_is_a_table_per_section_with_a_limit() -> None:
    diff = diff_models(
        OnnxProgram({"main": linear_model(seed=0)}), OnnxProgram({"main": linear_model(seed=1)})
    )
    assert "weights: 2" in str(diff)
    assert str(diff).count("changed") == 2
    assert diff.text(1).endswith("… and 1 more")


def test_no_file() -> None:
    with pytest.raises(LoadError, match="no such file"):
        diff_models("nowhere.onnx", "nowhere.onnx")


def renamed_weights(count: int, prefix: str, step: int) -> OnnxProgram:
    """Return a model with many different weights, whose names have a prefix, in steps of 1 or -1.

    A search from the first weight on would take quadratic time for the opposite order.
    """
    array = np.arange(count, dtype=np.float32)
    values = [
        ir.Value(name=f"{prefix}{i}", const_value=ir.Tensor(array[i : i + 1], name=f"{prefix}{i}"))
        for i in range(count)
    ]
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    nodes, last = [], x
    for i, value in enumerate(values):
        nodes.append(ir.Node("", "Add", [last, value], name=f"n{i}"))
        last = nodes[-1].outputs[0]
        last.name = f"v{i}"
    graph = ir.Graph([x], [last], nodes=nodes, initializers=values[::step], opset_imports={"": 21})
    return OnnxProgram({"main": ir.Model(graph, ir_version=10)})


def test_the_time_is_linear_in_renamed_weights() -> None:
    def seconds(count: int) -> float:
        models = renamed_weights(count, "a", 1), renamed_weights(count, "b", -1)
        begin = time.process_time()
        found = diff_models(*models)
        assert sum(change.kind == "renamed" for change in found.changes) == count
        return time.process_time() - begin

    seconds(100)
    # The least of three: a collection of garbage in between is counted, too.
    assert min(seconds(6_000) for _ in range(3)) < 8 * max(seconds(1_500), 0.025)


def test_every_change_is_on_the_page() -> None:
    changes = tuple(Change("nodes", "changed", f"node {i}", "1", "2") for i in range(50))
    text = page(ModelDiff(changes), "a.onnx", "b.onnx")
    assert 'Changes: 50 in <a href="#nodes">nodes</a>.' in text
    assert '<h2 id="nodes">nodes (50)</h2>' in text
    assert all(f"<td>node {i}</td>" in text for i in range(50))
    assert text.count('<tr class="changed mono">') == 50


def test_names_are_text_not_markup() -> None:
    change = Change("weights", "added", "<script>alert(1)</script>", "", "&")
    text = page(ModelDiff((change,)), "<b>", "c")
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text
    assert "<title>&lt;b&gt; → c</title>" in text


def test_same_models() -> None:
    assert "The models are the same." in page(ModelDiff(()), "a", "b")


def test_the_page_has_the_style_of_all_pages() -> None:
    text = page(ModelDiff((Change("nodes", "added", "n\ud800", "", "2"),)), "a", "b")
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[n] x) => (float[n] y) { y = Abs(x) }""")
    shared = (files("coreai_onnx.model.pages") / "frame.css").read_text(encoding="utf-8")
    assert f"<style>{shared}" in graph_page(model, [], title="t")
    assert f"<style>{shared}" in text
    assert "script-src 'sha256-" in text
    text.encode()
