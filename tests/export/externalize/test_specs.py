"""What a user may ask for, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import coreai_onnx
from coreai_onnx import ExternalizeSpec
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.errors import DeclarationError
from coreai_onnx.export.externalize.specs import as_specs
from tests.delegation.user_kernels.declared import SCALED


class Square(torch.nn.Module):
    """x * x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


def test_attributes_belong_to_a_composite() -> None:
    with pytest.raises(ValueError, match="composite_attrs requires composite_op_name"):
        ExternalizeSpec(Square, composite_attrs=["eps"])
    assert ExternalizeSpec(Square, "square", []).composite_attrs == []


@pytest.mark.parametrize("name", ["a.b", "a::b", "a b", "", "1st", "überlagerung"])
def test_a_composite_name_is_a_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not a name"):
        ExternalizeSpec(Square, name)


@pytest.mark.parametrize("name", [5, b"square", Square])
def test_a_composite_name_is_text(name: Any) -> None:
    with pytest.raises(TypeError, match="composite_op_name must be a name, not"):
        ExternalizeSpec(Square, name)


class Marked:
    """A base class that is no module."""


class MarkedSquare(Square, Marked):
    """A module with that base class."""


def test_a_base_of_a_module_class_is_a_target() -> None:
    model = torch.nn.Sequential(MarkedSquare(), Square())
    program = coreai_onnx.convert(model, (torch.ones(2),), externalize_modules=[Marked])
    assert [f.name for f in program.model.functions.values()] == ["MarkedSquare"]


@pytest.mark.parametrize("attributes", ["eps", [1], [None], 5, {"eps": 1}])
def test_attributes_are_names(attributes: Any) -> None:
    with pytest.raises(TypeError, match="must be a list of attribute names"):
        ExternalizeSpec(Square, "square", attributes)


def test_a_bare_class_is_a_plain_function() -> None:
    given = ExternalizeSpec(Square, "square")
    assert as_specs([Square, given]) == [ExternalizeSpec(Square), given]


@pytest.mark.parametrize("target", ["Square", Square(), None, 3])
def test_a_target_is_a_class(target: Any) -> None:
    with pytest.raises(TypeError, match="must be a module class, not"):
        as_specs([target])
    with pytest.raises(TypeError, match="must be a module class, not"):
        ExternalizeSpec(target)
    with pytest.raises(TypeError, match="must be a module class, not"):
        coreai_onnx.convert(Square(), (torch.ones(2),), externalize_modules=[target])


def test_a_target_is_a_module_class() -> None:
    with pytest.raises(TypeError, match=r"target_class int is not a subclass"):
        as_specs([int])


@pytest.mark.parametrize("targets", ["Square", Square, ExternalizeSpec(Square), 3])
def test_targets_are_a_list(targets: Any) -> None:
    with pytest.raises(TypeError, match="must be a list of module classes"):
        as_specs(targets)


def test_a_declaration_gives_the_name() -> None:
    spec = ExternalizeSpec(Square, composite=SCALED)
    assert (spec.composite_op_name, spec.declaration) == ("scaled", SCALED)
    assert ExternalizeSpec(Square, "rms_norm").declaration is COMPOSITES["rms_norm"]
    assert ExternalizeSpec(Square, "square").declaration is None
    with pytest.raises(ValueError, match="give nothing else"):
        ExternalizeSpec(Square, "other", composite=SCALED)
    with pytest.raises(DeclarationError, match="is the name of a standard composite"):
        ExternalizeSpec(Square, composite=dataclasses.replace(SCALED, name="rope"))


def test_one_composite_has_one_declaration() -> None:
    declared = ExternalizeSpec(Square, composite=SCALED)
    assert len(as_specs([declared, ExternalizeSpec(torch.nn.ReLU, composite=SCALED)])) == 2
    for other in (None, dataclasses.replace(SCALED, version=2)):
        spec = ExternalizeSpec(torch.nn.ReLU, "scaled", composite=other)
        with pytest.raises(ValueError, match="scaled is declared for some of the modules only"):
            as_specs([declared, spec])
