"""Parsing of tensors and dims on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401 - registers bfloat16 with numpy
import numpy as np

from coreai_onnx.debugging.difference import Array
from coreai_onnx.debugging.reference.random_inputs import random_array
from coreai_onnx.errors import CommandError, failures_as
from coreai_onnx.model.files.new_files import file_fault
from coreai_onnx.model.interface import TensorInfo, type_text

_DTYPES = {
    *("float16", "float32", "float64", "bfloat16"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("complex32", "complex64", "complex128"),
}
_TYPE = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<dims>[\d,\s]*)\]")
_DIM = re.compile(r"(?P<axis>\d+)=(?P<name>[A-Za-z_]\w*)(\[(?P<min>\d*)\.\.(?P<max>\d*)\])?")


@dataclass(frozen=True)
class DynamicDim:
    """A dynamic dim of an input: its axis, name and bounds."""

    axis: int
    name: str
    min: int | None = None
    max: int | None = None


def split_assignments(texts: Iterable[str], option: str) -> dict[str, str]:
    """Split ``name=value`` texts.

    Raises:
        CommandError: If a text has no ``=``, or a name is given twice.
    """
    assignments: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise CommandError(f"{option} {text}: expected NAME=VALUE")
        if name in assignments:
            raise CommandError(f"{option}: {name!r} is given twice")
        assignments[name] = value
    return assignments


def read_tensor(text: str, rng: np.random.Generator) -> Array:
    """Read a ``.npy`` file, or create a random tensor of a type such as ``float32[2,8]``.

    Raises:
        CommandError: If the text is neither, or the file cannot be read.
    """
    if text.endswith(".npy"):
        if fault := file_fault(Path(text)):
            raise CommandError(f"cannot read {text}: {fault}")
        try:
            loaded: Array = np.load(Path(text), allow_pickle=False)
        except (EOFError, MemoryError, OSError, ValueError) as error:
            raise CommandError(f"cannot read {text}: {error}") from error
        if not isinstance(loaded, np.ndarray):
            raise CommandError(f"cannot read {text}: it is an archive of arrays, not one array")
        return loaded
    match = _TYPE.fullmatch(text)
    if match is None:
        raise CommandError(f"{text!r} is neither a .npy file nor a type such as float32[2,8]")
    # `float32[]` is a scalar.
    dims = tuple(int(dim) for dim in match["dims"].split(",") if dim.strip())
    return random_tensor(match["dtype"], dims, rng)


def random_tensor(dtype: str, dims: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return a random tensor, as ``debugging.reference.random_inputs.random_array`` does.

    Raises:
        CommandError: If there is no such dtype, or the tensor does not fit into memory.
    """
    if dtype not in _DTYPES:
        raise CommandError(f"{dtype!r} is not a dtype; there are {', '.join(sorted(_DTYPES))}")
    info = TensorInfo("", dtype, dims)
    try:
        return random_array(dtype, dims, rng)
    except (MemoryError, ValueError) as error:  # numpy limits the number of axes and elements
        raise CommandError(f"{info.type_text} cannot be made: {error}") from error


def fill_dims(info: TensorInfo, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the dims of an input with every symbolic one replaced by its size.

    Raises:
        CommandError: If a size is missing.
    """
    dims = [dim if isinstance(dim, int) else sizes.get(str(dim)) for dim in info.dims]
    missing = [str(dim) for dim, size in zip(info.dims, dims, strict=True) if size is None]
    if missing:
        raise CommandError(
            f"input {info.name!r} is {info.type_text}: give a size with --dim {missing[0]}=SIZE"
        )
    return tuple(size for size in dims if size is not None)


def restore_dtype(array: Array, info: TensorInfo) -> Array:
    """Restore a dtype that ``.npy`` files cannot represent (bfloat16 is stored as raw bytes)."""
    if array.dtype.kind == "V" and array.dtype.itemsize == np.dtype(info.dtype).itemsize:
        return array.view(info.dtype)
    return array


def parse_dynamic(texts: Iterable[str]) -> dict[str, tuple[DynamicDim, ...]]:
    """Parse ``input:0=batch,1=seq[2..512]`` texts.

    Raises:
        CommandError: If a text has another form, the bounds of a dim allow only one size or none,
            or an axis is given twice.
    """
    dims_of: dict[str, tuple[DynamicDim, ...]] = {}
    for text in texts:
        name, colon, dims = text.partition(":")
        matches = [_DIM.fullmatch(part.strip()) for part in dims.split(",")]
        if not (name and colon) or None in matches:
            raise CommandError(
                f"--dynamic {text}: expected INPUT:AXIS=NAME,..., as in ids:0=batch,1=seq[1..512]"
            )
        parsed = tuple(
            DynamicDim(int(m["axis"]), m["name"], _bound(m["min"]), _bound(m["max"]))
            for m in matches
            if m is not None
        )
        dims_of[name] = (*dims_of.get(name, ()), *parsed)
        _check_dims(text, dims_of[name])
    return dims_of


def _check_dims(text: str, dims: tuple[DynamicDim, ...]) -> None:
    for dim in dims:
        # torch.export turns a dim that can have one size only into a constant.
        if dim.max is not None and dim.max <= max(dim.min or 0, 1):
            raise CommandError(
                f"--dynamic {text}: {dim.name} is from {dim.min or 0} to {dim.max}; "
                "a dynamic dim takes several sizes, its maximum is at least 2"
            )
    axes = [dim.axis for dim in dims]
    twice = [axis for axis in axes if axes.count(axis) > 1]
    if twice:
        raise CommandError(f"--dynamic {text}: axis {twice[0]} is given twice")


def describe(array: Array) -> tuple[str, ...]:
    """Return (type, min, mean, max) of an array as text."""
    text = type_text(array.dtype.name, array.shape)
    if array.size == 0 or array.dtype.kind in "OSU":
        return text, "-", "-", "-"
    # numpy adds up bfloat16 in bfloat16, whose sums soon stop growing.
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    if wide.dtype.kind == "c":
        wide = np.abs(wide)
    return text, *(f"{number:.6g}" for number in (wide.min(), wide.mean(), wide.max()))


def _bound(text: str | None) -> int | None:
    return int(text) if text else None


def read_text(path: Path) -> str:
    """Read a text.

    Raises:
        CommandError: If the path is not a file with a text.
    """
    if fault := file_fault(path):
        raise CommandError(f"cannot read {path}: {fault}")
    with failures_as(CommandError, f"cannot read {path}"):
        return path.read_text(encoding="utf-8")
