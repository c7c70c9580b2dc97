"""Attributes of opaque nodes."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import sympy
import torch

from coreai_onnx.errors import LoweringError, Where
from coreai_onnx.lower.nodes.attributes import onnx_attributes


class Kind(Enum):
    """An enum of strings."""

    FIRST = "first"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (True, 1),
        (3, 3),
        (0.5, 0.5),
        ("a", "a"),
        (Kind.FIRST, "first"),
        (torch.float16, int(ir.DataType.FLOAT16)),
        ((1, True), [1, 1]),
        ([1, 0.5], [1.0, 0.5]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_plain_values(value: Any, wanted: Any) -> None:
    written = onnx_attributes("my.ops::F", {"a": value, "absent": None}, None)
    assert written == {"a": wanted}
    assert type(written["a"]) is type(wanted)


@pytest.mark.parametrize("tensor", [torch.tensor([[1.5]]), np.array([[1.5]], np.float32)])
def test_tensors(tensor: Any) -> None:
    written = onnx_attributes("my.ops::F", {"a": tensor}, None)["a"]
    assert written.dtype == ir.DataType.FLOAT
    assert written.numpy().tolist() == [[1.5]]


@pytest.mark.parametrize("value", [[], ["a", 1], {"a": 1}, sympy.Symbol("s"), [sympy.Symbol("s")]])
def test_a_value_without_a_form_is_named(value: Any) -> None:
    with pytest.raises(LoweringError, match=r"my.ops::F: attribute 'a' is") as caught:
        onnx_attributes("my.ops::F", {"a": value}, Where("layers.0"))
    assert "at layers.0" in str(caught.value)
