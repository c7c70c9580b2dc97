"""Literals and types of a model file."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript import FLOAT, FLOAT16, STRING

from coreai_onnx.model.python.builder.tensors import (
    Container,
    constant,
    content_key,
    tensor,
    type_and_shape,
)


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [(1, "INT64", []), (1.0, "FLOAT", []), ([True], "BOOL", [1]), ([["a"]], "STRING", [1, 1]),
     (np.zeros((2, 0), np.int8), "INT8", [2, 0])],
)  # fmt: skip
def test_literals(value: object, dtype: str, shape: list[int]) -> None:
    found = constant(value)
    assert found.dtype.name == dtype
    assert list(found.shape) == shape


@pytest.mark.parametrize("value", [object(), [], None, [1, object()], 2**64])
def test_what_is_no_constant(value: object) -> None:
    with pytest.raises((TypeError, OverflowError)):
        constant(value)


def test_equal_contents_have_equal_keys() -> None:
    half = tensor([0.5], FLOAT16)
    assert content_key(half) == content_key(ir.Tensor(np.array([0.5], np.float16)))
    keys = {content_key(t) for t in (half, tensor(0.5, FLOAT16), tensor([0.5], FLOAT))}
    assert len(keys) == 3
    assert content_key(tensor(["a", "b"], STRING)) != content_key(tensor(["ab", ""], STRING))


def test_annotations() -> None:
    assert type_and_shape(FLOAT["n", 2])[1] == ir.Shape(["n", 2])
    assert type_and_shape(FLOAT[...])[1] is None
    assert isinstance(type_and_shape(Container(ir.SequenceType, FLOAT))[0], ir.SequenceType)
    assert type_and_shape(None) == (None, None)
