"""Constants as Python literals, exact in every bit."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxscript import FLOAT, FLOAT16, INT64
from onnxscript.onnx_types import BFLOAT16, DOUBLE, INT4

from coreai_onnx.model.python.builder.tensors import constant, content_key, tensor
from coreai_onnx.model.python.layout import flat
from coreai_onnx.model.python.literals import annotation, float32_text, literal, shortest

NAMES = {"tensor": tensor, "FLOAT": FLOAT, "FLOAT16": FLOAT16, "INT64": INT64, "DOUBLE": DOUBLE,
         "BFLOAT16": BFLOAT16, "INT4": INT4}  # fmt: skip


def read(value: ir.TensorProtocol) -> ir.TensorProtocol:
    text = literal(value)
    assert text is not None
    return constant(eval(flat(text), {**NAMES, "float": float}))


@given(st.integers(0, 2**32 - 1), st.sampled_from(["float32", "float16", "bfloat16"]))
def test_a_number_keeps_its_bits(bits: int, name: str) -> None:
    dtype = ir.DataType[{"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}[name]]
    raw = np.array([bits if name == "float32" else bits % 65536])
    array = raw.astype("uint32" if name == "float32" else "uint16").view(dtype.numpy())
    value = ir.Tensor(array, dtype=dtype)
    if literal(value) is None:  # a NaN with a payload is a weight
        assert np.isnan(array.astype(np.float32)).all()
    else:
        assert content_key(read(value)) == content_key(value)


@pytest.mark.parametrize(
    ("values", "dtype", "text"),
    [
        ([0, -1], INT64, "[0, -1]"),
        (2.4e-7, FLOAT, "2.4e-7"),
        ([[0.1]], FLOAT, "[[0.1]]"),
        (0.1, FLOAT16, "tensor(0.1, FLOAT16)"),
        (0.1, DOUBLE, "tensor(0.1, DOUBLE)"),
        ([7, -8], INT4, "tensor([7, -8], INT4)"),
        ([], INT64, "tensor([], INT64, shape=[0])"),
        (-0.0, FLOAT, "-0.0"),
        (float("-inf"), FLOAT, 'float("-inf")'),
        (-(2**63), INT64, "-9223372036854775808"),
    ],
)
def test_what_it_looks_like(values, dtype, text: str) -> None:
    value = tensor(values, dtype, [0] if values == [] else None)
    found = literal(value)
    assert found is not None
    assert flat(found) == text
    assert content_key(read(value)) == content_key(value)


def test_large_and_texts() -> None:
    assert literal(ir.Tensor(np.arange(17))) is None
    assert flat(literal(ir.StringTensor([b"a'"], shape=ir.Shape([1]))) or "") == '["a\'"]'
    assert literal(ir.StringTensor([b"\xff"], shape=ir.Shape([1]))) is None


def test_shortest_digits() -> None:
    assert shortest(np.float32(1e-6)) == "1e-06"
    assert float32_text(9.999999974752427e-07) == "1e-6"
    assert float32_text(0.1) == "0.1"  # a double that no single has


@pytest.mark.parametrize(
    ("dtype", "shape", "text"),
    [
        ("FLOAT", ir.Shape(["batch", None, 4]), 'FLOAT["batch", None, 4]'),
        ("INT4", None, "INT4[...]"),
        ("BOOL", ir.Shape([]), "BOOL"),
    ],
)
def test_types(dtype: str, shape: ir.Shape | None, text: str) -> None:
    found = annotation(ir.TensorType(ir.DataType[dtype]), shape)
    assert found is not None
    assert flat(found) == text
