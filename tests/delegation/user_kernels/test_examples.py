"""Generated calls of a composite: sizes, presence of inputs, values of attributes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from coreai_onnx.composites import Attribute, Composite, Input
from coreai_onnx.delegation.user_kernels.examples import ExampleCall, example_calls
from tests.delegation.user_kernels.declared import CLIPPED_SWIGLU, GATHERED
from tests.support.tolerances import assert_close

PRODUCT = Composite(
    name="product",
    inputs=(
        Input("x", dims="* M K"),
        Input("weight", dims="K N"),
        Input("bias", optional=True, dims="~N"),
        Input("mask", optional=True, dtype="bool", dims="M"),
    ),
    outputs=("output",),
    attributes=(
        Attribute("alpha", "float", 1.0),
        Attribute("transposed", "int", 0, structural=True),
        Attribute("mode", "string", "plain", structural=True),
        Attribute("bound", "float"),
    ),
    reference=lambda *_, **__: torch.zeros(1),
    formula="x @ weight + bias",
)


def shapes(call: ExampleCall) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in call.inputs.items()}


def test_sizes_have_edges_and_agree_by_letter() -> None:
    calls = list(example_calls(PRODUCT, torch.float32))
    found = [shapes(call) for call in calls]
    for one in found:
        assert one["x"][-1] == one["weight"][0]
        assert one.get("mask", one["x"][-2:-1]) == one["x"][-2:-1]
    counts = {torch.Size(one["x"]).numel() for one in found}
    assert {0, 1} <= counts
    assert max(counts) > 100_000
    assert {len(one["x"]) for one in found} >= {2, 3, 4}
    assert any(size % 2 for one in found for size in one["x"])
    assert [one["bias"] for one in found if "bias" in one and one["weight"][1] > 1].count((1,)) >= 2


def test_inputs_without_letters_have_many_elements_too() -> None:
    calls = list(example_calls(CLIPPED_SWIGLU, torch.float16))
    assert max(x.numel() for call in calls for x in call.inputs.values()) > 100_000
    assert {x.dtype for call in calls for x in call.inputs.values()} == {torch.float16}


def test_a_call_of_many_elements_has_no_larger_product_of_dims() -> None:
    for composite in (CLIPPED_SWIGLU, GATHERED, PRODUCT):
        (call,) = (c for c in example_calls(composite, torch.float32) if c.label == "many elements")
        assert 1 << 17 <= max(torch.Size(s).numel() for s in shapes(call).values()) < 1 << 18


def test_values_are_special_wide_and_other_ones() -> None:
    calls = {call.label: call for call in example_calls(CLIPPED_SWIGLU, torch.float16)}
    for x in calls["special values"].inputs.values():
        assert x.isnan().any()
        assert {float("inf"), -float("inf"), 0.0} <= set(x.flatten().tolist())
        assert ((x != 0) & (x.abs() < torch.finfo(x.dtype).tiny)).any()
    for x in calls["values from 1e-4 to 1e4"].inputs.values():
        assert x.abs().min() < 0.01
        assert x.abs().max() > 1000
    one, other = calls["different sizes"], calls["other values of the same sizes"]
    assert shapes(one) == shapes(other)
    assert not torch.equal(one.inputs["gate"], other.inputs["gate"])


def test_optional_inputs_are_passed_and_omitted() -> None:
    names = {frozenset(call.inputs) for call in example_calls(PRODUCT, torch.float64)}
    required = frozenset({"x", "weight"})
    assert names == {
        required,
        required | {"bias"},
        required | {"mask"},
        required | {"bias", "mask"},
    }


def test_attributes_are_varied_or_given() -> None:
    values = [call.attributes for call in example_calls(PRODUCT, torch.float32)]
    assert {one["alpha"] for one in values} == {1.0, 0.75}
    assert {one["transposed"] for one in values} == {0, 1}
    assert all("bound" not in one for one in values)
    given = [{"bound": 2.0}, {"mode": "other", "bound": 1.0}]
    values = [call.attributes for call in example_calls(PRODUCT, torch.float32, given)]
    assert {one["bound"] for one in values} == {1.0, 2.0}
    assert {one["mode"] for one in values} == {"plain", "other"}


def test_indices_of_both_dtypes_are_admissible() -> None:
    calls = list(example_calls(GATHERED, torch.bfloat16))
    assert {call.inputs["rows"].dtype for call in calls} == {torch.int32, torch.int64}
    for call in calls:
        if len(call.inputs["table"]) and len(call.inputs["rows"]):
            assert int(call.inputs["rows"].max()) < len(call.inputs["table"])


def test_one_call_has_fixed_sizes() -> None:
    assert [call.fixed for call in example_calls(CLIPPED_SWIGLU, torch.float32)].count(True) == 1


def test_given_shapes_are_added_and_calls_are_reproducible() -> None:
    more = {"gate": (3, 9), "up": (3, 9)}
    first = list(example_calls(CLIPPED_SWIGLU, torch.float32, (), [more]))
    assert more in [shapes(call) for call in first]
    again = list(example_calls(CLIPPED_SWIGLU, torch.float32, (), [more]))
    for one, other in zip(first, again, strict=True):
        assert_close(one.inputs["gate"], other.inputs["gate"])


@pytest.mark.parametrize(("dims", "wanted"), [("N 1", 1), ("N M|N", 2)])
def test_ones_and_alternatives(dims: str, wanted: int) -> None:
    composite = dataclasses.replace(
        CLIPPED_SWIGLU, inputs=(Input("gate", dims="N M"), Input("up", dims=dims))
    )
    sizes = {shapes(call)["up"][1] for call in example_calls(composite, torch.float32)}
    assert len(sizes) == 1 if wanted == 1 else len(sizes) > 1
