"""Constants: their data, equality of their bytes, and weights that are computed from others."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.files.mapped_tensors import WidenedTensor
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.surgeon_names import LazyValues, stored_values

Compute = Callable[..., np.ndarray]
_SAMPLE = 4096
"""Bytes that a fingerprint reads at each of its places, of which there are six at most."""


def constant_from_tensor(name: str, source: ir.TensorProtocol) -> gs.Constant:
    """Return a constant that wraps ``source`` without reading it."""
    weight = gs.Weight(source)
    constant = gs.Constant(name, weight)
    constant.weight = weight
    return constant


def holds_source(constant: gs.AnyConstant) -> bool:
    """Whether a constant still has the data it was imported with."""
    return _source_weight(constant) is not None


def _source_weight(constant: gs.AnyConstant) -> gs.Weight | None:
    # A pass may also ask for a constant of graph-surgeon's own class, which has no weight.
    weight = constant.weight if isinstance(constant, gs.Constant) else None
    return weight if weight is not None and weight.holds(stored_values(constant)) else None


def tensor_from_constant(constant: gs.AnyConstant) -> ir.TensorProtocol:
    """Return the ir tensor of a constant: the object it was imported from, if there is one."""
    weight, values = _source_weight(constant), stored_values(constant)
    if weight is not None:
        return weight.source
    if isinstance(values, gs.Weight):
        return values.source
    if isinstance(values, LazyValues):  # created by a pass from a proto
        return ir.serde.deserialize_tensor(values.tensor)
    return ir.tensor(np.asarray(values), name=constant.name)


def lazy_constant(
    name: str,
    compute: Compute,
    sources: Sequence[gs.AnyConstant],
    shape: Sequence[int],
    dtype: np.dtype | None = None,
) -> gs.Constant:
    """Return a constant whose values are ``compute(*values of the sources)``, run on each read.

    Nothing is read or stored now: memory holds the sources, and one result at a time when a model
    is saved or passed to a session.

    Args:
        name: Its name, which must be unused.
        compute: The function of numpy arrays.
        sources: Its arguments.
        shape: The shape of the result.
        dtype: The dtype of the result; that of the first source by default.
    """
    # The tensors, not the constants: a source may leave the graph, or get other values, before the
    # file is written.
    tensors = [tensor_from_constant(source) for source in sources]
    # A weight that is widened from a file stays one, which `stored_weights` looks for.
    if compute is np.transpose and isinstance(tensors[0], WidenedTensor):
        return constant_from_tensor(name, tensors[0].transpose(name))
    element = tensors[0].dtype if dtype is None else ir.DataType.from_numpy(np.dtype(dtype))

    def evaluate() -> ir.TensorProtocol:
        values = np.ascontiguousarray(compute(*(np.asarray(t.numpy()) for t in tensors)))
        return ir.tensor(values, dtype=element, name=name)

    lazy = ir.LazyTensor(evaluate, dtype=element, shape=ir.Shape(shape), name=name)
    return constant_from_tensor(name, lazy)


def is_lazy(constant: gs.AnyConstant) -> bool:
    """Whether reading a constant computes it."""
    return isinstance(tensor_from_constant(constant), ir.LazyTensor)


def nbytes(constant: gs.AnyConstant) -> int:
    """Return the size of a constant without reading it."""
    return math.prod(int(dim) for dim in constant.shape) * int(np.dtype(constant.dtype).itemsize)


def joined_name(names: Sequence[str]) -> str:
    """Return one name for several, with their common prefix and suffix written once.

    >>> joined_name(["attn.q_proj.weight", "attn.k_proj.weight"])
    'attn.q_proj+k_proj.weight'
    """
    if len(names) == 1:
        return names[0]
    parts = [name.split(".") for name in names]
    front = _common_start(parts)
    rests = [part[len(front) :] for part in parts]
    back = _common_start([rest[::-1] for rest in rests])[::-1]
    middles = [".".join(rest[: len(rest) - len(back)]) for rest in rests]
    return ".".join([*front, "+".join(middles), *back])


def _common_start(parts: Sequence[list[str]]) -> list[str]:
    same = itertools.takewhile(lambda words: len(set(words)) == 1, zip(*parts, strict=False))
    return [words[0] for words in same]


def fingerprint(constant: gs.AnyConstant) -> tuple[object, ...]:
    """Return dtype, shape and a few bytes: cheap, and different for nearly all unequal tensors."""
    data = _bytes(constant)
    # Places are spread over the data: padded weights and tables of angles begin alike.
    step = max(_SAMPLE, len(data) // 4)
    sample = hashlib.blake2b(digest_size=16)
    for start in range(0, len(data), step):
        sample.update(data[start : start + _SAMPLE])
    sample.update(data[-_SAMPLE:])
    return np.dtype(constant.dtype).name, tuple(constant.shape), sample.digest()


def digest(constant: gs.AnyConstant) -> bytes:
    """Return a hash of all bytes; a weight in a mapped data file is not copied."""
    return hashlib.blake2b(_bytes(constant), digest_size=32).digest()


def _bytes(constant: gs.AnyConstant) -> memoryview:
    """Return the bytes of the values; a contiguous array is viewed, not copied."""
    values = np.asarray(constant.values)
    # Strings: an array of objects holds addresses, which differ for equal texts.
    if values.dtype == object:
        return memoryview(b"\0".join(str(item).encode() for item in values.ravel()))
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")
