"""The interface of a model: names, dtypes and dims of its inputs, outputs and states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coreai_onnx.model.metadata import read_complex, read_states

if TYPE_CHECKING:  # sessions read names of dtypes, but no model: see docs/memory.md
    import onnx_ir as ir

_COMPLEX_DTYPES = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}

_DTYPES = """
    undefined float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64
    complex64 complex128 bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz uint4
    int4 float4_e2m1fn float8_e8m0fnu uint2 int2 float6_e2m3fn float6_e3m2fn""".split()
"""The numpy names of ONNX's element types, in the order of their numbers."""
_ONNX_NAMES = {"float32": "FLOAT", "float64": "DOUBLE", "float4_e2m1fn": "FLOAT4E2M1"}
_ONNX_NAMES |= {"float8_e8m0fnu": "FLOAT8E8M0", "float6_e2m3fn": "FLOAT6E2M3"}
_ONNX_NAMES |= {"float6_e3m2fn": "FLOAT6E3M2"}
_BY_ONNX_NAME = {_ONNX_NAMES.get(x, x.replace("_", "").upper()): x for x in _DTYPES}
CAPACITY = "max_length"
"""The dim of a static cache whose capacity is chosen at run time, in files of `export_model`."""
LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
"""What the names of inputs for adapters end in, as in the files of peft."""
Dim = int | str | None
"""A fixed size, a symbolic name or expression, or None if unknown."""


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype and dims of an input or output; prints as ``ids: int64[batch, seq]``.

    Attributes:
        name: The tensor's name in the file.
        dtype: The numpy (or ``ml_dtypes``) name of the dtype, ``"float32"``, ``"bfloat16"``. A
            complex tensor, which the file stores as pairs of real numbers, is ``"complex64"``,
            ``"complex128"``, or ``"complex32"``, which numpy lacks.
        dims: One entry per axis. The pair axis of a complex tensor is left out.
    """

    name: str
    dtype: str
    dims: tuple[Dim, ...]

    @property
    def is_complex(self) -> bool:
        """Whether the tensor is complex; the file stores it as pairs on a last axis of size 2."""
        return self.dtype.startswith("complex")

    @property
    def numpy_dtype(self) -> str:
        """Name of the dtype of the tensor's arrays: complex64 for complex32, which numpy lacks."""
        return "complex64" if self.dtype == "complex32" else self.dtype

    @property
    def type_text(self) -> str:
        """Dtype and dims without the name, ``int64[batch, seq]``."""
        return type_text(self.dtype, self.dims)

    def __str__(self) -> str:
        """Return ``name: dtype[dims]``."""
        return f"{self.name}: {self.type_text}"


@dataclass(frozen=True)
class ModelInterface:
    """The user-facing interface of one entrypoint; states are separate from inputs and outputs."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    states: tuple[TensorInfo, ...]


def type_text(dtype: str, dims: tuple[Dim, ...]) -> str:
    """Return ``float32[batch, 4]``; an unknown dim prints as ``?``."""
    return f"{dtype}[{', '.join('?' if dim is None else str(dim) for dim in dims)}]"


def value_type_text(value: ir.Value) -> str:
    """Return ``float32[batch, 4]`` for a value, ``float32`` without a shape; empty if unknown."""
    if value.dtype is None:
        return ""
    dtype = dtype_name(value.dtype.name)
    return dtype if value.shape is None else type_text(dtype, _dims(value.shape))


def _dims(shape: ir.Shape | None) -> tuple[Dim, ...]:
    return tuple(dim if isinstance(dim, int) else dim.value for dim in shape or ())


def dtype_name(onnx_name: str) -> str:
    """Return the numpy name of an ONNX element type: ``"FLOAT"`` becomes ``"float32"``.

    Raises:
        ValueError: If ONNX does not define such a type.
    """
    dtype = _BY_ONNX_NAME.get(onnx_name.upper())
    if dtype is None:
        raise ValueError(f"{onnx_name!r} is not an ONNX element type")
    return dtype


def dtype_of_element(element_type: int) -> str:
    """Return the numpy name of the number of an ONNX element type: 1 becomes ``"float32"``."""
    return _DTYPES[element_type]


def element_of_dtype(dtype: str) -> int:
    """Return the number of an ONNX element type by its numpy name."""
    return _DTYPES.index(dtype)


def as_complex(info: TensorInfo) -> TensorInfo:
    """Return the description of the complex tensor that a tensor of pairs represents.

    Raises:
        ValueError: If the tensor does not hold pairs of float16, float32 or float64.
    """
    if info.dtype not in _COMPLEX_DTYPES or info.dims[-1:] != (2,):
        raise ValueError(f"{info} does not hold the pairs of a complex tensor")
    return TensorInfo(info.name, _COMPLEX_DTYPES[info.dtype], info.dims[:-1])


def difference(one: TensorInfo, other: TensorInfo) -> bool:
    """Return whether two tensors cannot be the same state: dtype, rank or a fixed dim differ."""
    if one.dtype != other.dtype or len(one.dims) != len(other.dims):
        return True
    pairs = zip(one.dims, other.dims, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def interface(model: ir.Model) -> ModelInterface:
    """Return inputs, outputs and states of a model, in the order of the file.

    Raises:
        ValueError: If the metadata lists a tensor as complex that does not hold pairs.
    """
    states, pairs = read_states(model.metadata_props), read_complex(model.metadata_props)

    def described(value: ir.Value) -> TensorInfo:
        dtype = dtype_name(value.dtype.name) if value.dtype is not None else "undefined"
        info = TensorInfo(value.name or "", dtype, _dims(value.shape))
        return as_complex(info) if info.name in pairs else info

    olds, news = {s.input for s in states}, {s.output for s in states}
    # Before IR version 4, ONNX required every initializer to be an input as well.
    inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    by_name = {value.name: value for value in model.graph.inputs}
    return ModelInterface(
        inputs=tuple(described(value) for value in inputs if value.name not in olds),
        outputs=tuple(described(value) for value in model.graph.outputs if value.name not in news),
        states=tuple(described(by_name[state.input]) for state in states if state.input in by_name),
    )
