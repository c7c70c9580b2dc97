"""Outputs in memory of the caller."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.errors import InputError, SessionError
from coreai_onnx.runtime.sessions.session import Session
from tests.support.small_models import (
    add_model,
    counter_model,
    echo_model,
    linear_model,
    parse,
    phase_model,
)


def session(model: ir.Model) -> Session:
    return Session(model, kernels=False)


def test_outputs_are_written_to_the_arrays() -> None:
    s, x = session(linear_model()), np.ones((3, 8), np.float32)
    into = s.output_arrays({"x": x})
    assert {name: array.shape for name, array in into.items()} == {"y": (3, 64)}
    outputs = s.run_into(into, x)
    assert outputs["y"] is into["y"]
    np.testing.assert_array_equal(into["y"], s.run(x)["y"])
    assert into["y"].any()
    x *= 2
    s.run_into(into, x=x)
    np.testing.assert_array_equal(into["y"], s.run(x)["y"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "bool", "int64", "float16"])
def test_dtypes(dtype: str) -> None:
    onnx_name = {"float8_e4m3fn": "float8e4m3fn"}.get(dtype, dtype)
    s = session(echo_model(onnx_name))
    x = np.array([[1, 0, 1, 1]]).astype(getattr(ml_dtypes, dtype, dtype))
    into = s.output_arrays({"x": x})
    s.run_into(into, x)
    assert into["y"].dtype == x.dtype
    np.testing.assert_array_equal(into["y"], x)


def test_complex_outputs_and_states() -> None:
    s, z = session(phase_model()), np.array([3 + 4j, 5j], np.complex64)
    into = s.output_arrays({"z": z})
    s.run_into(into, z)
    np.testing.assert_array_equal(into["y"], np.array([2 + 2j, -1 + 3j], np.complex64))


def test_states_go_on() -> None:
    s, x = session(counter_model()), np.ones(1, np.float32)
    into = s.output_arrays({"x": x})
    for count in (1, 2, 3):
        s.run_into(into, x)
        assert into["y"] == count


def test_outputs_whose_shape_depends_on_the_data_are_left_out() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x) => (int64[1, m] places, float[n] y) { places = NonZero(x)  y = Neg(x) }""")
    s, x = session(model), np.array([0, 2], np.float32)
    into = s.output_arrays({"x": x})
    assert list(into) == ["y"]
    outputs = s.run_into(into, x)
    np.testing.assert_array_equal(outputs["places"], [[1]])
    np.testing.assert_array_equal(into["y"], -x)
    with pytest.raises(SessionError, match="onnxruntime failed"):
        s.run_into({"places": np.zeros((1, 2), np.int64)}, x)


X = np.ones((2, 8), np.float32)
_READ_ONLY = np.zeros((2, 64), np.float32)
_READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("into", "message"),
    [
        ({"z": X}, "there is no output 'z'; there are y"),
        ({"y": [0.0]}, "list is not a numpy array"),
        ({"y": np.zeros((2, 64))}, "the array has another type\n  got       float64"),
        ({"y": np.zeros((2, 63), np.float32)}, "the array has another type"),
        ({"y": np.zeros(128, np.float32)}, "the array has another type"),
        ({"y": np.zeros((64, 2), np.float32).T}, "not writable and C-contiguous"),
        ({"y": _READ_ONLY}, "not writable and C-contiguous"),
    ],
)
def test_arrays_that_cannot_hold_an_output(into: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        session(linear_model()).run_into(into, X)


@pytest.mark.parametrize(("name", "number"), [("int4", 22), ("string", 8)])
def test_dtypes_whose_memory_is_not_that_of_numpy(name: str, number: int) -> None:
    model = parse(f"""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x) => ({name}[n] y) {{ y = Cast<to = {number}>(x) }}""")
    s, x = session(model), np.array([1, 2, -3], np.float32)
    assert s.output_arrays({"x": x}) == {}
    assert s.run(x)["y"].astype(np.float32).tolist() == [1, 2, -3]
    with pytest.raises(InputError, match=f"output 'y': {name} has no memory"):
        s.run_into({"y": x}, x)


def test_memory_of_an_input() -> None:
    whole = np.ones((2, 6), np.float32)
    with pytest.raises(InputError, match="'sum': its array shares memory with 'mask'"):
        session(add_model()).run_into({"sum": whole}, np.ones((2, 6), np.int64), whole)
