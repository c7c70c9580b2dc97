"""Inputs, outputs and states of a model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.model.interface import (
    TensorInfo,
    as_complex,
    dtype_name,
    dtype_of_element,
    element_of_dtype,
    interface,
)
from tests.support.small_models import counter_model, phase_model


def test_interface_sets_states_apart() -> None:
    io = interface(counter_model())
    assert [str(info) for info in io.inputs] == ["x: float32[n]"]
    assert [str(info) for info in io.states] == ["count: float32[1]"]
    assert [str(info) for info in io.outputs] == ["y: float32[n]"]


def test_interface_shows_pairs_as_complex_tensors() -> None:
    io = interface(phase_model())
    assert [str(info) for info in io.inputs] == ["z: complex64[n]"]
    assert [str(info) for info in io.states] == ["phase: complex64[1]"]
    assert [str(info) for info in io.outputs] == ["y: complex64[n]"]


def test_which_tensors_are_pairs() -> None:
    whole = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}
    for real, dtype in whole.items():
        assert as_complex(TensorInfo("x", real, ("n", 2))) == TensorInfo("x", dtype, ("n",))
    assert TensorInfo("x", "complex32", ()).numpy_dtype == "complex64"
    for other in (("bfloat16", (2,)), ("int64", (2,)), ("float32", (3,)), ("float32", ())):
        with pytest.raises(ValueError, match="does not hold the pairs"):
            as_complex(TensorInfo("x", *other))


def test_interface_shows_a_state_without_an_initial_value() -> None:
    assert [info.name for info in interface(counter_model(initial=False)).states] == ["count"]


def test_an_unknown_dim_prints_as_a_question_mark() -> None:
    assert str(TensorInfo("x", "int64", (2, None, "seq"))) == "x: int64[2, ?, seq]"


@pytest.mark.parametrize(
    ("onnx_name", "name"),
    [
        ("FLOAT", "float32"),
        ("double", "float64"),
        ("bfloat16", "bfloat16"),
        ("BOOL", "bool"),
        ("float8e4m3fn", "float8_e4m3fn"),
        ("int4", "int4"),
        ("STRING", "string"),
    ],
)
def test_dtype_names(onnx_name: str, name: str) -> None:
    assert dtype_name(onnx_name) == name
    if name != "string":
        assert np.dtype(name).name == name


@pytest.mark.parametrize("dtype", list(ir.DataType), ids=str)
def test_dtypes_are_those_of_onnx_ir(dtype: ir.DataType) -> None:
    plain = dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED)
    name = dtype.name.lower() if plain else dtype.numpy().name
    assert dtype_name(dtype.name) == dtype_of_element(dtype.value) == name
    assert element_of_dtype(name) == dtype.value


def test_an_unknown_dtype_is_an_error() -> None:
    with pytest.raises(ValueError, match="not an ONNX element type"):
        dtype_name("float128")
