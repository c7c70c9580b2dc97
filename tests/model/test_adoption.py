"""A model gets the graph and functions of a copy, and keeps its identity and metadata."""

from __future__ import annotations

from coreai_onnx.model.adoption import adopt
from tests.quantization.example_weights import heavy_tailed, linear


def test_graph_and_functions_of_the_copy() -> None:
    model, copy = (linear(heavy_tailed(4, 8, seed)) for seed in (0, 1))
    model.metadata_props["key"] = "value"
    graph = copy.graph
    adopt(copy, model)
    assert model.graph is graph
    assert model.functions == copy.functions
    assert model.metadata_props["key"] == "value"
