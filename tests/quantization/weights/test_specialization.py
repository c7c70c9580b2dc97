"""Functions are copied for calls whose weights are quantized in different ways."""

from __future__ import annotations

from coreai_onnx.quantization.weights.products import Products
from coreai_onnx.quantization.weights.specialization import specialize
from tests.quantization.test_calibration import NESTED
from tests.support.small_models import parse


def called(products: Products) -> dict[str, list[str]]:
    """Return the op types of the nodes of the main graph and of each function."""
    model = products.model
    found = {"main": [node.op_type for node in model.graph]}
    return found | {f.name: [node.op_type for node in f] for f in model.functions.values()}


def specialized(**kinds: int) -> dict[str, list[str]]:
    model = parse(NESTED)
    values = {model.graph.initializers[name]: kind for name, kind in kinds.items()}
    return called(specialize(Products(model), values))


def test_calls_of_one_kind_share_their_functions() -> None:
    assert set(specialized(a=4, b=4, c=4)) == {"main", "Outer", "Inner"}
    assert set(specialized()) == {"main", "Outer", "Inner"}


def test_outer_and_inner_functions_are_copied() -> None:
    found = specialized(a=4, b=8)
    assert found["main"] == ["Outer", "Relu", "Outer.2"]
    assert found["Outer"][0] != found["Outer.2"][0]
    assert {found["Outer"][0], found["Outer.2"][0]} == {"Inner", "Inner.2"}


def test_only_what_differs_is_copied() -> None:
    found = specialized(a=4, b=4)  # c keeps its dtype: Inner is the same for both
    assert found["main"] == ["Outer", "Relu", "Outer.2"]
    assert set(found) == {"main", "Outer", "Outer.2", "Inner"}
