"""Conversion of values to and from onnxruntime.

numpy has no bfloat16 and float8. They are ``ml_dtypes`` arrays in this package, and raw memory with
an ONNX element type in onnxruntime.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import ml_dtypes  # noqa: F401 - registers bfloat16 with numpy
import numpy as np
import onnxruntime as ort

from coreai_onnx.errors import InputError, SessionError
from coreai_onnx.model.interface import (
    TensorInfo,
    as_complex,
    dtype_name,
    dtype_of_element,
    element_of_dtype,
)
from coreai_onnx.runtime.tensors.onnxruntime_names import wraps_array
from coreai_onnx.runtime.tensors.outputs import Array

_PACKED = frozenset("int2 uint2 int4 uint4 float4_e2m1fn float6_e2m3fn float6_e3m2fn".split())
"""Dtypes of which several elements share a byte in onnxruntime, and each has its own in numpy."""


ONLY_NUMBERS = "sessions pass tensors of numbers: call session.ort.run for strings and sequences"


def has_memory(info: TensorInfo) -> bool:
    """Return whether the memory of a numpy array is what onnxruntime reads and writes."""
    is_tensor = info.dtype != "string" and "(" not in info.dtype
    return is_tensor and info.dtype != "complex32" and info.dtype not in _PACKED


def dtype_of(ort_type: str) -> str:
    """Return the numpy dtype name for onnxruntime's type name ``tensor(float16)``.

    A type that is not a tensor (``seq(tensor(float))``) is returned unchanged.
    """
    if not ort_type.startswith("tensor("):
        return ort_type
    return dtype_name(ort_type.removeprefix("tensor(").removesuffix(")"))


def to_numpy(value: object, info: TensorInfo) -> Array:
    """Return a user's value as a C-contiguous array without converting its dtype.

    torch tensors (without importing torch), numpy arrays and numpy scalars keep their dtype; a
    complex32 tensor becomes a complex64 array. A Python number takes the input's dtype if the
    conversion is allowed: bool to any, int to all but bool, float to floats and complex, complex to
    complex.

    Raises:
        InputError: If the value is none of these, a tensor has no data that can be read, or a
            Python number does not fit.
    """
    # No value is a tensor of torch before torch has been imported.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(torch, value, info)
    # onnxruntime reads an array of the other byte order as if it were of the machine's.
    if isinstance(value, np.ndarray | np.generic):
        if isinstance(value, np.ndarray) and value.dtype.isnative and value.flags.c_contiguous:
            return value
        return cast(Array, np.asarray(value, dtype=value.dtype.newbyteorder("="), order="C"))
    if isinstance(value, bool | int | float | complex):
        return _from_number(value, info)
    if info.dtype == "string" or "(" in info.dtype:
        advice = ONLY_NUMBERS
    else:
        hint = "; pass inputs of a dictionary as run(**inputs)" if isinstance(value, dict) else ""
        advice = f"pass a torch tensor, a numpy array or a Python number{hint}"
    raise InputError(
        f"input {info.name!r}: {type(value).__name__} is not a tensor\n"
        f"  expected  {info.type_text}\n  {advice}"
    )


def described(value: Array | ort.OrtValue, info: TensorInfo) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and the shape of a value, in the form of the input's own.

    A complex64 array counts as complex32 where that is expected: numpy has no complex32.
    """
    if isinstance(value, np.ndarray):
        name = _name(value.dtype)
        return info.dtype if name == info.numpy_dtype else name, value.shape
    stored = TensorInfo(info.name, dtype_of(value.data_type()), tuple(value.shape()))
    shown = as_complex(stored) if info.is_complex else stored
    return shown.dtype, tuple(value.shape())[: len(shown.dims)]


# Both are computed in Python, which took 15 µs of a decoder's token for each input and output.
@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name


@functools.cache
def _stored(element_type: int) -> np.dtype[Any]:
    name = dtype_of_element(element_type)
    return np.dtype(object if name == "string" else name)


def to_ort(array: Array, info: TensorInfo | None = None) -> ort.OrtValue:
    """Return an OrtValue over the array's memory; keep the array while the value is in use.

    A complex array becomes pairs of real numbers for a complex input, rounded to float16 for
    complex32.
    """
    if info is not None and info.is_complex:
        pairs = array[..., np.newaxis].view(array.real.dtype)
        array = pairs.astype(np.float16) if info.dtype == "complex32" else pairs
    # 2 stands for a type that an extension registered, such as those of ml_dtypes, which
    # onnxruntime knows by their ONNX element types only.
    if array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(array)
    if _name(array.dtype) in _PACKED:
        import onnx_ir as ir  # few sessions have such values

        # onnxruntime takes the shape of the array, and reads the first half of its bytes or less.
        packed = np.frombuffer(ir.tensor(array).tobytes(), np.uint8)
        raw = np.zeros(array.shape, np.uint8)
        raw.reshape(-1)[: packed.size] = packed
    else:
        raw = array.view(f"uint{8 * array.itemsize}")
    element = element_of_dtype(_name(array.dtype))
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, element)


def write_adapter_file(path: Path, values: Mapping[str, Array]) -> None:
    """Write values of optional inputs, by name, in the format of ``onnxruntime.LoraAdapter``."""
    adapter = ort.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({name: to_ort(array) for name, array in values.items()})
    adapter.export_adapter(str(path))


def from_ort(value: ort.OrtValue, info: TensorInfo | None = None) -> Array:
    """Return a copy of an OrtValue's tensor as a numpy (or ``ml_dtypes``) array.

    The pairs of a complex output become a complex array, complex64 for complex32.
    """
    if info is not None and info.is_complex:
        whole = np.dtype(info.numpy_dtype)
        pairs = from_ort(value).astype(np.zeros(0, whole).real.dtype, copy=False)
        return cast(Array, pairs.view(whole)[..., 0])
    if not value.is_tensor():
        name = "an output" if info is None else f"output {info.name!r}"
        raise SessionError(f"{name} is {value.data_type()}, not a tensor\n  {ONLY_NUMBERS}")
    target = _stored(value.element_type())
    if target.isbuiltin == 1:
        array = value.numpy()
        # onnxruntime's array keeps its own memory alive, but not that of the numpy array behind.
        return cast(Array, array.copy() if wraps_array(value) else array)
    shape = tuple(value.shape())
    size = value.tensor_size_in_bytes()
    if not size:
        return np.empty(shape, target)
    raw = (ctypes.c_uint8 * size).from_address(value.data_ptr())
    if target.name in _PACKED:
        import onnx_ir as ir  # as above

        packed, dtype = np.frombuffer(raw, np.uint8), ir.DataType.from_numpy(target)
        return cast(Array, ir.PackedTensor(packed, dtype, shape=shape).numpy())
    return cast(Array, np.frombuffer(raw, dtype=target).reshape(shape).copy())


def _from_torch(torch: Any, tensor: Any, info: TensorInfo) -> Array:
    if tensor.layout != torch.strided or tensor.is_meta:
        what = "a meta tensor, without data" if tensor.is_meta else f"of layout {tensor.layout}"
        raise InputError(f"input {info.name!r}: the tensor is {what}\n  expected  {info.type_text}")
    # Tensor.numpy() refuses tensors that need a gradient, or whose conjugation or negation is
    # pending.
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    try:
        return cast(Array, tensor.numpy())
    except TypeError:  # bfloat16 and float8: no numpy type
        raw = tensor.view({1: torch.uint8, 2: torch.int16}[tensor.element_size()]).numpy()
        name = str(tensor.dtype).removeprefix("torch.")
        names = {"float8_e4m3fnuz": "FLOAT8E4M3FNUZ", "float8_e5m2fnuz": "FLOAT8E5M2FNUZ"}
        onnx_name = names.get(name, name.replace("_", "").upper())
        return cast(Array, raw.view(np.dtype(dtype_name(onnx_name))))


def _from_number(value: complex, info: TensorInfo) -> Array:
    dtype = np.dtype(info.numpy_dtype)
    floating = dtype.name.startswith(("float", "bfloat"))
    # First, because bool is a subclass of int.
    if isinstance(value, bool) or info.is_complex:
        fits = True
    elif isinstance(value, int):
        fits = floating or (
            dtype.kind in "iu" and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
        )
    else:
        fits = floating and isinstance(value, float)
    if not fits:
        raise InputError(
            f"input {info.name!r}: the {type(value).__name__} {value} does not fit its dtype\n"
            f"  expected  {info.type_text}"
        )
    return np.asarray(value).astype(dtype)
