"""Tensors and dims written on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401 - teaches numpy the name bfloat16
import numpy as np

from coreai_onnx.contents import TensorInfo, type_text
from coreai_onnx.debugging.difference import Array
from coreai_onnx.errors import CommandError

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
        CommandError: If a text has no ``=``, or a name comes twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise CommandError(f"{option} {text}: expected NAME=VALUE")
        if name in found:
            raise CommandError(f"{option}: {name!r} is given twice")
        found[name] = value
    return found


def read_tensor(text: str, rng: np.random.Generator) -> Array:
    """Read a ``.npy`` file, or make a random tensor of a type such as ``float32[2,8]``.

    Raises:
        CommandError: If the text is neither, or the file cannot be read.
    """
    if text.endswith(".npy"):
        try:
            loaded: Array = np.load(Path(text), allow_pickle=False)
        except (OSError, ValueError) as error:
            raise CommandError(f"cannot read {text}: {error}") from error
        return loaded
    match = _TYPE.fullmatch(text)
    if match is None:
        raise CommandError(f"{text!r} is neither a .npy file nor a type such as float32[2,8]")
    dims = tuple(int(dim) for dim in match["dims"].split(",") if dim.strip())
    return random_tensor(match["dtype"], dims, rng)


def random_tensor(dtype: str, dims: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return a random tensor: floats from the normal distribution, integers and booleans 0 or 1.

    0 and 1 are valid token ids, indices and masks of nearly every model.

    Raises:
        CommandError: If numpy has no such dtype.
    """
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise CommandError(
            f"{dtype!r} is not a dtype; try float32, int64, bool, bfloat16"
        ) from error
    if dtype.startswith(("float", "bfloat", "complex")):
        return rng.standard_normal(dims).astype(kind)
    return np.asarray(rng.integers(0, 2, dims)).astype(kind)


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
    """Give a loaded array the dtype that ``.npy`` cannot name (bfloat16 is stored as raw bytes)."""
    if array.dtype.kind == "V" and array.dtype.itemsize == np.dtype(info.dtype).itemsize:
        return array.view(info.dtype)
    return array


def parse_dynamic(texts: Iterable[str]) -> dict[str, tuple[DynamicDim, ...]]:
    """Parse ``input:0=batch,1=seq[2..512]`` texts.

    Raises:
        CommandError: If a text has another form.
    """
    found: dict[str, tuple[DynamicDim, ...]] = {}
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
        found[name] = (*found.get(name, ()), *parsed)
    return found


def describe(array: Array) -> tuple[str, ...]:
    """Return (type, min, mean, max) of an array as text."""
    text = type_text(array.dtype.name, array.shape)
    if array.size == 0 or array.dtype.kind in "OSU":
        return text, "-", "-", "-"
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    if wide.dtype.kind == "c":
        wide = np.abs(wide)
    return text, *(f"{number:.6g}" for number in (wide.min(), wide.mean(), wide.max()))


def _bound(text: str | None) -> int | None:
    return int(text) if text else None
