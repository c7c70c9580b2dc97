"""Bytewise equality of constants, without a copy of the data."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx_graphsurgeon as gs

_CHUNK = 1 << 20
_SAMPLE = 4096


def fingerprint(constant: gs.Constant) -> tuple[object, ...]:
    """Return dtype, shape and a few bytes: cheap, and different for nearly all unequal tensors."""
    data = _bytes(constant)
    step = max(_SAMPLE, len(data) // 4)
    sample = hashlib.blake2b(digest_size=16)
    for start in range(0, len(data), step):
        sample.update(data[start : start + _SAMPLE])
    sample.update(data[-_SAMPLE:])
    return np.dtype(constant.dtype).name, tuple(constant.shape), sample.digest()


def digest(constant: gs.Constant) -> bytes:
    """Return a hash of all bytes, read chunk by chunk."""
    data = _bytes(constant)
    whole = hashlib.blake2b(digest_size=32)
    for start in range(0, len(data), _CHUNK):
        whole.update(data[start : start + _CHUNK])
    return whole.digest()


def _bytes(constant: gs.Constant) -> memoryview:
    """Return the bytes of the values; a contiguous array is viewed, not copied."""
    values = np.asarray(constant.values)
    if values.dtype == object:
        return memoryview(b"\0".join(str(item).encode() for item in values.ravel()))
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")
