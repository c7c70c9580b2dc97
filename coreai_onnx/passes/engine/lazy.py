"""Weights that are computed from others only when they are written or run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir

from coreai_onnx.passes.engine.weight import constant_from_tensor, tensor_from_constant

Compute = Callable[..., np.ndarray]


def lazy_constant(
    name: str,
    compute: Compute,
    sources: Sequence[gs.Constant],
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
    tensors = [tensor_from_constant(source) for source in sources]
    element = tensors[0].dtype if dtype is None else ir.DataType.from_numpy(np.dtype(dtype))

    def evaluate() -> ir.TensorProtocol:
        values = np.ascontiguousarray(compute(*(np.asarray(t.numpy()) for t in tensors)))
        return ir.tensor(values, dtype=element, name=name)

    lazy = ir.LazyTensor(evaluate, dtype=element, shape=ir.Shape(shape), name=name)
    return constant_from_tensor(name, lazy)


def is_lazy(constant: gs.Constant) -> bool:
    """Whether reading a constant computes it."""
    return isinstance(tensor_from_constant(constant), ir.LazyTensor)


def nbytes(constant: gs.Constant) -> int:
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
