"""The cut of a graph into regions."""

from __future__ import annotations

import numpy as np

from coreai_onnx.debugging.reference.regions import COMPUTED, cut
from tests.support.small_models import parse

MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] x, bool go) => (float[n] y) {
  a = Neg(x)  b = Exp(a)  c = Abs(b)
  d = If<then_branch = yes () => (float[n] t) { t = Add(b, c) },
         else_branch = no () => (float[n] e) { e = Neg(b) }>(go)
  y = Sin(d)
}"""
X = np.ones(2, np.float32)


def test_a_region_reaches_to_the_values_that_torch_knows() -> None:
    graph = cut(parse(MODEL), {"x": X, "go": np.bool_(True), "b": X, "y": X})
    by_value = {region.value: region for region in graph.regions}
    assert by_value["b"].nodes == (0, 1)
    assert by_value["b"].inputs == ("x",)
    assert by_value["y"].nodes == (2, 3, 4)  # the If reads b and c in its branches
    assert set(by_value["y"].inputs) == {"b", "go"}
    assert [v.name for v in graph.model.graph.outputs] == ["b" + COMPUTED, "y" + COMPUTED]
    assert [v.name for v in graph.model.graph.inputs] == ["x", "go", "b"]


def test_a_value_of_another_type_is_not_cut() -> None:
    for other in (X.astype(np.float64), np.ones((2, 2), np.float32)):
        graph = cut(parse(MODEL), {"y": other})
        assert not graph.regions


def test_the_model_is_not_changed_and_a_region_stands_alone() -> None:
    model = parse(MODEL)
    graph = cut(model, {"x": X, "b": X, "y": X})
    assert [v.name for v in model.graph.outputs] == ["y"]
    alone = graph.alone([graph.regions[0]])
    assert [node.op_type for node in alone.graph] == ["Neg", "Exp"]
    assert [v.name for v in alone.graph.inputs] == ["x"]
