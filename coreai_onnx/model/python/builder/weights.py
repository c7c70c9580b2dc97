"""Weights in a safetensors file, by name and by the module that they belong to."""

from __future__ import annotations

import atexit
import base64
import difflib
import json
import math
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from onnxscript import ir

from .errors import BuildError, failure

DTYPES = {
    "F64": "DOUBLE", "F32": "FLOAT", "F16": "FLOAT16", "BF16": "BFLOAT16", "I64": "INT64",
    "I32": "INT32", "I16": "INT16", "I8": "INT8", "U64": "UINT64", "U32": "UINT32",
    "U16": "UINT16", "U8": "UINT8", "BOOL": "BOOL", "C64": "COMPLEX64",
    "F8_E4M3": "FLOAT8E4M3FN", "F8_E5M2": "FLOAT8E5M2",
}  # fmt: skip
"""Types of safetensors, and what ONNX calls them."""
DIGEST = "digest"
"""Metadata of the file: a hash of all weights."""
TYPES = "onnx"
"""Metadata of the file: types and shapes that safetensors lacks, and names of shared weights."""


_embedded: dict[str, str] = {}
"""Digest to a file of weights as base64, which a source of the model contains."""


def embed(digest: str, text: str) -> None:
    """Give the model whose weights have this digest a file of weights, as base64."""
    _embedded[digest] = text


@cache
def _extracted(digest: str) -> Path:
    """Return a file with embedded weights; it is removed when Python exits.

    Raises:
        BuildError: If the text is not base64.
    """
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "embedded.safetensors"
    try:
        # pop frees the text, which is larger than the file that it becomes.
        text = "".join(_embedded.pop(digest).split())
        path.write_bytes(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise BuildError(f"the embedded weights are damaged: {error}") from error
    return path


@dataclass(frozen=True)
class StoredWeight:
    """A weight by its name in the file; it becomes an initializer where an operator uses it."""

    name: str
    file: WeightsFile = field(repr=False, compare=False)

    def load(self) -> ir.TensorProtocol:
        """Return the tensor; its data is read when it is needed."""
        return self.file.load(self.name)


class WeightsFile:
    """The index of a safetensors file; a missing file has no weights."""

    def __init__(self, path: Path, digest: str | None = None) -> None:
        """Read nothing until a weight is asked for, unless there is a digest to check.

        Raises:
            BuildError: If the file is missing, or has weights of another digest.
        """
        is_embedded = digest is not None and digest in _embedded
        self.path = path = _extracted(digest) if is_embedded else path
        self._stamp = self._now()
        self.digest = ""
        if digest is not None and (not self.index or self.digest != digest):
            what = "has other weights" if path.is_file() else "is missing"
            raise BuildError(
                f"{path.name} {what}: {path.stem}.py needs the weights that were written with it; "
                f'write both files with kernel.save("{path.stem}.py")'
            )

    @cached_property
    def index(self) -> dict[str, Any]:
        """Name to type, shape and place."""
        if not self.path.is_file():
            return {}
        try:
            with self.path.open("rb") as file:
                # A damaged file may name a header of any size.
                size = int.from_bytes(file.read(8), "little")
                header: dict[str, Any] = json.loads(
                    file.read(min(size, self.path.stat().st_size))
                )
            metadata = header.pop("__metadata__", {})
            self.digest = metadata.get(DIGEST, "")
            for entry in header.values():
                entry["start"] = 8 + size + entry["data_offsets"][0]
                entry["dtype"] = DTYPES.get(entry["dtype"], entry["dtype"])
            for name, special in json.loads(metadata.get(TYPES, "{}")).items():
                header[name] = {**header[special.pop("same_as", name)], **special}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise BuildError(
                f"{self.path.name} is not a safetensors file: {error}"
            ) from error
        return header

    @cached_property
    def modules(self) -> frozenset[str]:
        """Every module path that a weight is under."""
        parts = (name.split(".") for name in self.index)
        return frozenset(
            ".".join(path[:end]) for path in parts for end in range(1, len(path))
        )

    def _now(self) -> tuple[int, ...]:
        if not self.path.is_file():
            return ()
        status = self.path.stat()
        # The inode shows a file that was replaced by one of equal size and time.
        return status.st_ino, status.st_size, status.st_mtime_ns

    def load(self, name: str) -> ir.TensorProtocol:
        """Return a tensor that reads its data from the file when it is needed.

        Raises:
            BuildError: If the file has been replaced, or is damaged.
        """
        if self._now() != self._stamp:
            stem = self.path.stem
            raise BuildError(
                f"{self.path.name} has changed since {stem}.py was imported: import it again"
            )
        entry = self.index[name]
        start, end = entry["data_offsets"]
        if not 0 <= start <= end <= self.path.stat().st_size - entry["start"] + start:
            raise BuildError(
                f"{self.path.name} ends before the data of {name!r}: it is cut short"
            )
        shape = ir.Shape(entry["shape"])
        if entry["dtype"] == "STRING":
            return self._texts(name, entry, shape)
        dtype = ir.DataType[entry["dtype"]]
        if end - start != math.ceil(math.prod(entry["shape"]) * dtype.bitwidth / 8):
            raise BuildError(
                f"{self.path.name}: {name!r} has {end - start} bytes, not its shape"
            )
        if start == end:
            array = np.empty(tuple(entry["shape"]), dtype=dtype.numpy())
            return ir.Tensor(array, dtype=dtype, name=name)
        return ir.ExternalTensor(
            self.path.name, entry["start"], end - start, dtype, shape=shape, name=name,
            base_dir=self.path.parent,
        )  # fmt: skip

    def _texts(
        self, name: str, entry: dict[str, Any], shape: ir.Shape
    ) -> ir.TensorProtocol:
        start, end = entry["data_offsets"]
        with self.path.open("rb") as file:
            file.seek(entry["start"])
            texts = json.loads(file.read(end - start))
        return ir.StringTensor(
            [bytes.fromhex(text) for text in texts], shape=shape, name=name
        )


class Weights:
    """The weights of a module: ``weights["layers.0"]["mlp.up_proj.weight"]``."""

    def __init__(self, file: WeightsFile, prefix: str = "") -> None:
        """Show the weights whose name begins with a prefix."""
        self._file = file
        self._prefix = prefix

    def __getitem__(self, name: str) -> Any:
        """Return the weight of this name, or the weights of the module of this name."""
        full = self._prefix + name
        if full in self._file.index:
            return StoredWeight(full, self._file)
        if full in self._file.modules:
            return Weights(self._file, f"{full}.")
        # Also names that are far off: any name of the file shows how they are built.
        close = difflib.get_close_matches(full, self._file.index, n=3, cutoff=0.0)
        there = f"; similar: {', '.join(close)}" if close else ""
        raise failure(
            sys._getframe(1),
            f"there is no weight {full!r} in {self._file.path.name}{there}",
        )
