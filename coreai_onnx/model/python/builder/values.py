"""Values of a call: torch tensors, arrays and numbers for onnxruntime, and its results.

numpy has no bfloat16 and float8: their arrays have a type of ``ml_dtypes``, and onnxruntime takes
them as raw memory with an element type. A complex tensor is stored as pairs of real numbers.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnxscript import ir

from .errors import CallError

_COMPLEX = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}
"""Type of the halves of a pair, to what torch calls the type of the complex number."""


@dataclass(frozen=True)
class ValueInfo:
    """What a call takes or returns under a name.

    Attributes:
        name: Name of the input or output.
        dtype: Type of the elements that the file stores.
        dims: Sizes: a number, a name, or None; without the axis of pairs.
        is_complex: Whether the file stores pairs of real numbers.
    """

    name: str
    dtype: ir.DataType
    dims: tuple[int | str | None, ...] | None
    is_complex: bool

    @classmethod
    def of(cls, value: ir.Value, pairs: set[str]) -> ValueInfo | None:
        """Return the type of an input or output; None if it is not a tensor."""
        if not isinstance(value.type, ir.TensorType):
            return None
        dims = None
        if value.shape is not None:
            dims = tuple(d if isinstance(d, int) else d.value for d in value.shape)
        name = value.name or ""
        if name in pairs and dims is not None:
            dims = dims[:-1]
        return cls(name, value.type.dtype, dims, name in pairs)

    @property
    def element(self) -> str:
        """What torch calls the type of an element."""
        if self.dtype == ir.DataType.STRING:
            return "string"
        name = self.dtype.numpy().name
        return _COMPLEX[name] if self.is_complex else name

    def __str__(self) -> str:
        """Return ``float32[batch, 4]``."""
        if self.dims is None:
            return self.element
        dims = ("?" if dim is None else str(dim) for dim in self.dims)
        return f"{self.element}[{', '.join(dims)}]"


def checked(
    value: Any,
    wanted: ValueInfo,
    sizes: dict[str, int],
    ranges: Mapping[str, Mapping[str, int]],
) -> Any:
    """Return an argument as an array.

    Args:
        value: A torch tensor, an array, or a number.
        wanted: What the model takes.
        sizes: Sizes of the named dims so far; those of this argument are added.
        ranges: Name of a dim to its smallest and largest size, ``min`` and ``max``.

    Raises:
        CallError: If it has another type or shape.
    """
    array, element = _array(value, wanted)
    if element != wanted.element:
        raise CallError(
            f"{wanted.name} is {element}, but the model takes {wanted}: "
            f"convert it to {wanted.element}"
        )
    shape = f"{wanted.name} has shape {list(array.shape)}, but the model takes {wanted}"
    if wanted.dims is not None and len(wanted.dims) != array.ndim:
        raise CallError(shape)
    for dim, size in zip(wanted.dims or (), array.shape, strict=False):
        if isinstance(dim, int) and dim != size:
            raise CallError(shape)
        if not isinstance(dim, str) or not dim.isidentifier():
            continue
        if sizes.setdefault(dim, size) != size:
            raise CallError(
                f"{shape} with {dim} = {sizes[dim]}, as in another argument"
            )
        low, high = (ranges.get(dim, {}).get(bound) for bound in ("min", "max"))
        if low is not None and size < low:
            raise CallError(f"{shape} with {dim} at least {low}")
        if high is not None and size > high:
            raise CallError(f"{shape} with {dim} at most {high}")
    return array


def _array(value: Any, wanted: ValueInfo) -> tuple[Any, str]:
    """Return an argument as an array, and what torch calls the type of its elements."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(torch, value, wanted), str(value.dtype).removeprefix(
            "torch."
        )
    if isinstance(value, bool | int | float | complex):
        return _from_number(value, wanted)
    array = np.asarray(value, order="C")
    if array.dtype.kind in "OUS":
        if wanted.dtype != ir.DataType.STRING:
            what = "None" if value is None else f"a {type(value).__name__}"
            raise CallError(
                f"{wanted.name} is {what}, but the model takes {wanted}: "
                "pass a torch tensor, an array or a number"
            )
        return array, "string"
    name = array.dtype.name
    is_half = (
        name == "complex64" and wanted.element == "complex32"
    )  # numpy has no complex32
    return array, "complex32" if is_half else name


def _from_torch(torch: Any, value: Any, wanted: ValueInfo) -> Any:
    if value.layout != torch.strided or value.is_meta:
        what = "no data" if value.is_meta else f"the layout {value.layout}"
        raise CallError(f"{wanted.name} has {what}, but the model takes {wanted}")
    tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16 and float8
        raw = tensor.view(
            {1: torch.uint8, 2: torch.int16}[tensor.element_size()]
        ).numpy()
        kinds = {
            kind.numpy().name: kind
            for kind in ir.DataType
            if kind.name not in _NO_ARRAY
        }
        return raw.view(kinds[str(tensor.dtype).removeprefix("torch.")].numpy())


_NO_ARRAY = ("UNDEFINED", "STRING")


def _from_number(value: complex, wanted: ValueInfo) -> tuple[Any, str]:
    """Return a number in the type of the input, if that holds all numbers of its kind."""
    floating = wanted.dtype.is_floating_point()
    fits = isinstance(value, bool) or (floating and not isinstance(value, complex))
    if isinstance(value, int) and wanted.dtype.is_integer():
        limits = np.iinfo(wanted.dtype.numpy())
        fits = limits.min <= value <= limits.max
    if wanted.is_complex:
        return np.asarray(
            value, "complex128" if wanted.element == "complex128" else "complex64"
        ), (wanted.element)
    if not fits or wanted.dtype == ir.DataType.STRING:
        return np.asarray(value), f"{type(value).__name__} {value}"
    return np.asarray(value).astype(wanted.dtype.numpy()), wanted.element


def to_ort(onnxruntime: Any, array: Any, wanted: ValueInfo) -> Any:
    """Return an array as onnxruntime takes it; the array must live as long."""
    if wanted.is_complex:
        pairs = array[..., np.newaxis].view(array.real.dtype)
        array = pairs.astype(wanted.dtype.numpy(), copy=False)
    make = onnxruntime.OrtValue
    if array.dtype.isbuiltin == 1:
        return make.ortvalue_from_numpy(array)
    raw = array.view(f"uint{8 * array.itemsize}")
    return make.ortvalue_from_numpy_with_onnx_type(raw, wanted.dtype.value)


def from_ort(value: Any, kind: ValueInfo) -> Any:
    """Return a result of onnxruntime as an array of its own."""
    target = kind.dtype.numpy()
    if target.isbuiltin == 1:
        array = value.numpy()
    else:
        size = value.tensor_size_in_bytes()
        raw = (ctypes.c_uint8 * size).from_address(value.data_ptr()) if size else b""
        array = np.frombuffer(raw, dtype=target).reshape(value.shape())
    array = array.copy()  # an output may be the memory of an argument
    if kind.is_complex:
        half = array.astype(np.float32) if kind.element == "complex32" else array
        array = half.view(
            "complex128" if kind.element == "complex128" else "complex64"
        )[..., 0]
    return array


def to_torch(array: Any, element: str) -> Any:
    """Return an array as a torch tensor; as it is if torch has no such type."""
    torch: Any = sys.modules["torch"]
    dtype = getattr(torch, element, None)
    if dtype is None or array.dtype == object:
        return array
    if array.dtype.isbuiltin == 1:
        # onnxruntime's uint64 is numpy's ulonglong, which torch refuses although it is the same.
        return torch.from_numpy(array.view(array.dtype.name)).to(dtype)
    return torch.from_numpy(array.view(f"uint{8 * array.itemsize}")).view(dtype)
