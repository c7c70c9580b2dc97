"""Declarations: complete, consistent with their references, and the source of every op type."""

from __future__ import annotations

import inspect

import pytest

from coreai_onnx.composite_ops import COMPOSITES
from coreai_onnx.composite_ops.declaration import Attribute, Composite, Input


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
