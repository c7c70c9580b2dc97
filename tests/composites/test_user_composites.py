"""Declarations of users' composites that are incomplete or not supported."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from coreai_onnx.composites import COMPOSITES, Attribute, Input, domain_of
from coreai_onnx.composites.user_composites import check_declaration
from coreai_onnx.errors import DeclarationError
from tests.delegation.user_kernels.declared import CLIPPED_SWIGLU, GATHERED, SCALED

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
