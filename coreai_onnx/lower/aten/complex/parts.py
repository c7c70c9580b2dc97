"""Complex values as pairs: splits and joins real and imaginary parts.

A complex tensor is represented as a real value with a trailing axis of 2.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.promotion import as_value
from coreai_onnx.lower.nodes.values import (
    Value,
    is_complex,
    promoted_dtype,
    rank_of,
    real_part,
    wrap,
)
from coreai_onnx.lower.walk.registry import Lowering, builtin_lowering, lowers

Parts = tuple[Value, Value]


def split(op: OpBuilder, x: Value) -> Parts:
    """Return the real and the imaginary part of a complex value."""
    return op.Gather(x, 0, axis=-1), op.Gather(x, 1, axis=-1)


def join(op: OpBuilder, re: Value, im: Value) -> Value:
    """Return the pairs of two parts of one shape."""
    return op.Concat(op.unsqueeze(re, [-1]), op.unsqueeze(im, [-1]), axis=-1)


def as_pairs(op: OpBuilder, x: Value) -> Value:
    """Return a complex value as a real one with one more axis."""
    # Not x itself, which is marked as complex.
    return op.Identity(x)


def parts_of(op: OpBuilder, x: Any, dtype: torch.dtype) -> Parts:
    """Return the parts of a value (real or complex) or a number, each in a real dtype."""
    if is_complex(x):
        re, im = split(op, x)
        return op.cast(re, dtype), op.cast(im, dtype)
    if isinstance(x, complex):
        return op.const(x.real, dtype), op.const(x.imag, dtype)
    re, zero = as_value(op, x, dtype), op.const(0.0, dtype)
    return re, broadcast_with(op, zero, re) if isinstance(x, ir.Value) else zero


def broadcast_with(op: OpBuilder, x: Value, other: Value) -> Value:
    """Return ``x`` in the shape that it and ``other`` broadcast to.

    Does not add ``0 * other``, which would be NaN where ``other`` is infinite.
    """
    return op.Where(op.Equal(other, other), x, x)


def promoted_parts(op: OpBuilder, *operands: Any) -> list[Parts]:
    """Return the parts of all operands in the real dtype of torch's result type."""
    dtype = real_part(promoted_dtype(*operands))
    return [parts_of(op, x, dtype) for x in operands]


# ---------------------------------------------------------------------- real lowerings reused
def _part(op: OpBuilder, arguments: Any, which: int) -> Any:
    """Return arguments with every complex value replaced by one part; reals have a real part."""
    if is_complex(arguments):
        return split(op, arguments)[which]
    if isinstance(arguments, complex):
        return (arguments.real, arguments.imag)[which]
    if isinstance(arguments, torch.dtype):
        return real_part(arguments)
    if isinstance(arguments, list | tuple):
        return [_part(op, a, which) for a in arguments]
    return arguments


def by_parts(*names: str) -> None:
    """Lower ops that act on each part separately by their real lowering on each part."""
    for name in names:
        real = _real(name)

        @lowers(name, complex=True)
        @functools.wraps(real)
        # The default binds the lowering of this name; a closure would see the last one of the loop.
        def lower(op: OpBuilder, *args: Any, _real: Lowering = real, **kwargs: Any) -> Any:
            re, im = (
                _real(
                    op, *_part(op, list(args), i), **{k: _part(op, v, i) for k, v in kwargs.items()}
                )
                for i in (0, 1)
            )
            if isinstance(re, list | tuple):
                return [join(op, a, b) for a, b in zip(re, im, strict=True)]
            return join(op, re, im)


def along_axes(table: Mapping[str, Sequence[int]], extra: int = 0) -> None:
    """Lower ops by their real lowering on pairs, with axes counted from the front.

    Args:
        table: For each op, the positions of the arguments that are axes.
        extra: The number of axes that the result may have beyond those of the first tensor.
    """
    for name, places in table.items():
        real = _real(name)

        @lowers(name, complex=True)
        @functools.wraps(real)
        def lower(
            op: OpBuilder,
            first: Any,
            *args: Any,
            _real: Lowering = real,
            _places: Sequence[int] = places,
            **kwargs: Any,
        ) -> Any:
            example = first[0] if isinstance(first, list | tuple) else first
            rank = rank_of(example) + extra
            rest = list(args)
            while len(rest) < max(_places, default=0):
                # Axes that are not passed have the default 0 in torch.
                rest.append(0)
            for place in _places:
                axes = rest[place - 1]
                rest[place - 1] = (
                    wrap(axes, rank) if isinstance(axes, int) else [wrap(a, rank) for a in axes]
                )
            pairs = (
                [as_pairs(op, x) for x in first]
                if isinstance(first, list | tuple)
                else as_pairs(op, first)
            )
            return _real(op, pairs, *rest, **kwargs)


def _real(name: str) -> Lowering:
    lowering = builtin_lowering(name)
    if lowering is None:
        raise LookupError(f"{name} has no real lowering to reuse")
    return lowering
