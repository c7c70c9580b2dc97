"""Attributes of a user's composite on the node: typed, and refused by name."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx import ExternalizeSpec
from coreai_onnx.bodies.modules.functions import ModuleAttributeTypeError
from coreai_onnx.errors import ExternalizationError
from tests.support.externalized import calls, converted, functions


class Kind(Enum):
    """An enumeration."""

    FAST = "fast"


class Tagged(torch.nn.Module):
    """Doubles, and has attributes of every kind."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.__dict__.update(attributes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


GIVEN: dict[str, Any] = {
    "count": 3,
    "ratio": 0.25,
    "label": "left",
    "on": True,
    "sizes": [1, 2],
    "ratios": (0.5, 2),
    "flags": [True, False],
    "labels": ["a", "b"],
    "kind": Kind.FAST,
    "absent": None,
    "scalar": np.float32(0.5),
    "flag": np.bool_(True),
    "scalars": [np.int64(4), 5],
    "none": [],
    "table": {"a": [1, None], "b": {"c": "d"}},
}
WRITTEN: dict[str, Any] = {
    "count": 3,
    "ratio": 0.25,
    "label": "left",
    "on": 1,
    "sizes": [1, 2],
    "ratios": [0.5, 2.0],
    "flags": [1, 0],
    "labels": ["a", "b"],
    "kind": "fast",
    "scalar": 0.5,
    "flag": 1,
    "scalars": [4, 5],
    "none": [],
    "table": '{"a": [1, null], "b": {"c": "d"}}',
    "version": 1,
}


def test_attributes_arrive_typed_and_none_is_dropped() -> None:
    model = torch.nn.Sequential(Tagged(**GIVEN))
    program = converted(model, (torch.randn(3),), [ExternalizeSpec(Tagged, "twice", list(GIVEN))])
    assert functions(program) == ["ai.coreai.user::twice"]
    (node,) = calls(program, "twice")
    found = {
        k: list(a.value) if isinstance(a.value, list | tuple) else a.value
        for k, a in node.attributes.items()
    }
    assert found == WRITTEN
    (function,) = program.model.functions.values()
    assert set(function.attributes) == set(WRITTEN)


def test_the_modules_version_is_the_composites() -> None:
    model = torch.nn.Sequential(Tagged(version=7))
    program = converted(model, (torch.randn(3),), [ExternalizeSpec(Tagged, "twice", ["version"])])
    assert calls(program, "twice")[0].attributes["version"].value == 7


@pytest.mark.parametrize(
    "value",
    [{"a": object()}, {"a": float("nan")}, torch.ones(2), [1, "a"], object(), [[1]], 1j, 2**63],
    ids=lambda v: type(v).__name__,
)
def test_other_types_are_refused_by_name(value: Any) -> None:
    model = torch.nn.Sequential(Tagged(odd=value))
    spec = ExternalizeSpec(Tagged, "twice", ["odd"])
    with pytest.raises(
        TypeError, match=r"0: attribute 'odd' of type \w+ has no ONNX form"
    ) as caught:
        coreai_onnx.convert(model, (torch.randn(3),), externalize_modules=[spec])
    assert caught.type is ModuleAttributeTypeError
    assert "forward" not in vars(model[0])


@pytest.mark.parametrize("name", ["twice", "rms_norm"])
def test_attributes_that_do_not_exist_are_refused(name: str) -> None:
    spec = ExternalizeSpec(Tagged, name, ["epsilon"])
    with pytest.raises(ExternalizationError, match="Tagged has no attribute 'epsilon'"):
        coreai_onnx.convert(
            torch.nn.Sequential(Tagged()), (torch.randn(3),), externalize_modules=[spec]
        )
