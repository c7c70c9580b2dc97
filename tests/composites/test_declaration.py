"""Declarations: canonical calls, checks, those of users, and what the C++ code knows of them."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
import torch

from coreai_onnx.composites import COMPOSITES, RoPE, checks, domain_of
from coreai_onnx.composites.declaration import Attribute, Composite, Input, computed_composite
from coreai_onnx.composites.user_composites import check_declaration
from coreai_onnx.errors import DeclarationError
from tests.delegation.user_kernels.declared import CLIPPED_SWIGLU, GATHERED, SCALED

SDPA = "scaled_dot_product_attention"


@pytest.mark.parametrize("composite", COMPOSITES.values(), ids=lambda c: c.name)
def test_reference_has_the_declared_signature(composite: Composite) -> None:
    parameters = inspect.signature(composite.reference).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    keyword = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert [p.name for p in positional] == [i.name for i in composite.inputs]
    assert [p.default is None for p in positional] == [i.optional for i in composite.inputs]
    assert [p.name for p in keyword] == [a.name for a in composite.attributes]
    assert [p.default for p in keyword] == [a.default for a in composite.attributes]


@pytest.mark.parametrize("composite", COMPOSITES.values(), ids=lambda c: c.name)
def test_a_name_means_one_thing(composite: Composite) -> None:
    declared = [*composite.inputs, *composite.attributes]
    names = [name for d in declared for name in (d.name, *d.aliases)]
    assert len(names) == len(set(names))
    words = [word for group in composite.variant_axes for word in group]
    assert len(words) == len(set(words))


@pytest.mark.parametrize("composite", COMPOSITES.values(), ids=lambda c: c.name)
def test_op_types_are_distinct_names(composite: Composite) -> None:
    types = composite.op_types()
    assert types[0] == composite.name
    assert len(types) == len(set(types))
    assert all(t.startswith(composite.name) and t.replace(".", "").isidentifier() for t in types)


def test_variants_take_one_word_of_each_group_in_order() -> None:
    composite = Composite(
        name="f",
        inputs=(Input("x"),),
        outputs=("y",),
        attributes=(Attribute("eps", "float", 1.0, aliases=("epsilon",)),),
        reference=lambda x: x,
        formula="",
        variant_axes=(("a", "b"), ("c",)),
    )
    plain = ("", "c", "a", "a_c", "b", "b_c")
    assert {v for v in composite.variants() if "float" not in v} == set(plain)
    assert {"float64", "a_c_bfloat16"} <= set(composite.variants())
    assert composite.attribute("eps").aliases == ("epsilon",)
    with pytest.raises(KeyError, match="composite f has no attribute 'epsilon'"):
        composite.attribute("epsilon")


@pytest.mark.parametrize(
    ("name", "shapes", "wanted"),
    [
        ("rms_norm", [(2, 5, 8), (8,)], [(2, 5, 8)]),
        ("skip_rms_norm", [(5, 8), (5, 8), None], [(5, 8), (5, 8)]),
        (
            "scaled_dot_product_attention",
            [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)],
            [(2, 4, 5, 6)],
        ),
        (SDPA, [(4, 5, 8), (2, 7, 8), (2, 7, 6)], [None]),
        (SDPA, [("b", 4, 5, 8), None, None], [None]),
        ("silu", [None], [None]),
        ("linear_nbits", [("b", 5, 64), (6, 2, 16), (6, 2)], [("b", 5, 6)]),
        ("linear_nbits", [None, (6, 2, 16), (6, 2)], [None]),
        ("linear_nbits", [(5, 64), None, None], [None]),
    ],
)
def test_shapes_of_outputs_follow_from_the_letters(name, shapes, wanted) -> None:
    assert COMPOSITES[name].output_shapes(shapes) == wanted


@pytest.mark.parametrize("name", COMPOSITES)
def test_every_output_has_declared_dims(name: str) -> None:
    assert len(COMPOSITES[name].output_dims) == len(COMPOSITES[name].outputs)


def test_a_forward_that_computes_a_reference_is_known() -> None:
    class Own(RoPE):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    assert computed_composite(RoPE.forward) == "rope"
    assert computed_composite(Own.forward) is None
    assert computed_composite(None) is None


def test_attention_without_an_alignment_is_compared_with_both() -> None:
    composite = COMPOSITES[SDPA]
    alignments = [a.get("causal_alignment") for a in composite.candidates({"is_causal": 1})]
    assert alignments == [None, "upper_left"]
    given = {"causal_alignment": "lower_right"}
    assert list(composite.candidates(given)) == [given]
    assert list(COMPOSITES["rope"].candidates({"dims": 4})) == [{"dims": 4}]


@pytest.mark.parametrize(("keys", "shown"), [(3, False), (4, True)])
def test_a_window_shows_only_beyond_its_size(keys: int, shown: bool) -> None:
    unproven = COMPOSITES[SDPA].unproven
    dims = {"query": (1, 1, 2, 8), "key": (1, 1, keys, 8)}
    assert (unproven(dims, {"window_size": 3}) == "") == shown
    assert unproven(dims, {}) == ""
    assert unproven({**dims, "attn_mask": (2, keys)}, {"window_size": 3}) == ""


WRITTEN_IN_C = dataclasses.replace(SCALED, attributes=(), reference=torch.exp)


@pytest.mark.parametrize("composite", [CLIPPED_SWIGLU, GATHERED, SCALED, WRITTEN_IN_C])
def test_valid_declarations(composite: Any) -> None:
    check_declaration(composite)
    assert domain_of(composite) == "ai.coreai.user"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "clipped-swiglu"}, "letters, digits"),
        ({"formula": ""}, "formula is empty"),
        ({"inputs": (Input("gate"), Input("gate"))}, "'gate' names two"),
        ({"inputs": ()}, "there is no input"),
        ({"inputs": (Input("gate", dtype="int64"), Input("up"))}, "the first input, gate"),
        ({"inputs": (Input("gate", optional=True), Input("up"))}, "must be required"),
        ({"dtypes": ("float32", "int64")}, "choose from float32"),
        ({"attributes": (Attribute("limit", "int", 1),)}, "structural=True"),
        ({"attributes": (Attribute("limit", "float", float("inf")),)}, "is inf"),
        (
            {"attributes": (Attribute("limit", "ints", [1], structural=True),)},
            "must be a tuple",
        ),
        ({"attributes": (Attribute("version", "float", 1.0),)}, "'version' names two"),
        ({"outputs": ()}, "there is no output"),
        ({"outputs": ("a", "b")}, "output_dims has 1 entries for 2 outputs"),
        ({"output_likes": ("limit",)}, "not an input of dtype"),
        ({"reference": lambda gate: gate}, "cannot be called with its inputs"),
    ],
)
def test_invalid_declarations(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        check_declaration(dataclasses.replace(CLIPPED_SWIGLU, **changes))


def test_names_of_standard_composites_are_taken() -> None:
    assert domain_of(COMPOSITES["rms_norm"]) == "ai.coreai"
    with pytest.raises(DeclarationError, match="'rms_norm' is the name of a standard composite"):
        domain_of(dataclasses.replace(CLIPPED_SWIGLU, name="rms_norm"))


def test_a_size_that_is_not_known_fits() -> None:
    assert checks.not_multiple("heads", None, "groups", 3) == ""
    assert checks.not_multiple("heads", 6, "groups", None) == ""
    wrong = checks.not_multiple("heads", 6, "groups", 4)
    assert wrong == "heads must be a multiple of groups (4), got 6"
    assert checks.not_multiple("heads", 6, "groups", 0) != ""


def test_axes_in_range_and_once() -> None:
    dims = {"input": (2, 3)}
    assert checks.axes_outside(dims, [-2, 1]) == ""
    assert checks.axes_outside(dims, [2]) == "axis 2 is out of range for input of rank 2"
    assert checks.axes_outside(dims, [1, -1]) == "axes [1, -1] name one axis twice"
    assert checks.axes_outside({}, [7]) == ""


def test_norms_want_the_last_axes() -> None:
    dims = {"input": (2, 3, 4)}
    assert checks.check_trailing_axes(dims, {"axes": (2, 1)}) == ""
    wrong = checks.check_trailing_axes(dims, {"axes": (0, 2)})
    assert wrong == "axes is [0, 2], not the last ones, [-2, -1]"
    assert checks.negative_axes(dims, {"axes": (2, -2), "eps": 1.0}) == {
        "axes": [-2, -1],
        "eps": 1.0,
    }


def test_without_a_rule_everything_is_right() -> None:
    plain = Composite("plain", (Input("x"),), ("y",), torch.abs, formula="abs(x)")
    assert plain.check({}, {}) == plain.unproven({}, {}) == ""
    assert plain.canonical({}, {"a": 1}) == {"a": 1}
    assert list(plain.candidates({"a": 1})) == [{"a": 1}]
    assert plain.unused({"a", "b"}) == set()
    assert checks.rank_below({}, "input", 3) == ""


def test_parameters_have_one_number_per_channel() -> None:
    check = checks.check_channels(2)
    assert check({"input": (2, 3), "scale": (3,)}, {}) == ""
    assert check({"input": (2, None), "scale": (3,)}, {}) == ""
    assert check({"input": (3,)}, {}) == "input must have rank 2 or higher, got 1"
    assert checks.other_channels({"input": (2, 3), "scale": (4,)}) != ""
