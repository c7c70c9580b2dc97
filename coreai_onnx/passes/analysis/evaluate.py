"""Evaluation of standard ops on constants, exact in every dtype.

Only ops whose result the ONNX standard determines to the last bit have a rule: data movement,
integers, comparisons, correctly rounded IEEE arithmetic. The few functions in ``_ROUNDED`` are
computed in float64 and rounded once, so that the result is the float nearest to the true value.
Results that depend on the order of a sum, on a library's exp, or on undefined conversions are
refused with a reason.
"""
# ruff: noqa: ARG001, ARG005 - every rule has the signature of a rule

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx_ir as ir

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.match import attribute_of

Array: TypeAlias = Any
"""A numpy array; numpy has no static type for the dtypes of ml_dtypes."""
Arrays = Sequence[Array]
"""The inputs of a node, None for an absent one."""
Rule = Callable[[gs.Node, Arrays], Array]

_WIDE = (np.dtype(np.float32), np.dtype(np.float64))
_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


class CannotEvaluateError(Exception):
    """A node cannot be evaluated; the message is the reason."""


def can_evaluate(op: str) -> bool:
    """Whether there is a rule for a standard op."""
    return op in RULES


def evaluate(node: gs.Node, arrays: Arrays, *, limit: int) -> list[Array]:
    """Return the outputs of a standard node on constant inputs.

    Args:
        node: The node; its attributes are read.
        arrays: One array per input, None for an absent one.
        limit: Largest output in elements.

    Raises:
        CannotEvaluateError: The result is too big, undefined, or may differ between runtimes.
    """
    if any(isinstance(value, gs.Node.AttributeRef) for value in node.attrs.values()):
        raise CannotEvaluateError("an attribute is known only to the caller of the function")
    if any(array is not None and array.dtype == object for array in arrays):
        raise CannotEvaluateError("strings are not folded")
    # Before it is computed: a shape of a few bytes may describe more than the memory holds.
    size = _size(node, arrays)
    if size > limit:
        raise CannotEvaluateError("the result is bigger than the limit")
    results = _applied(node, arrays)
    outputs = results if isinstance(results, list) else [results]
    return [np.asarray(output) for output in outputs]


def rearrange(node: gs.Node, arrays: Arrays) -> Array:
    """Return the output of an op that only moves elements, which may be objects.

    Raises:
        CannotEvaluateError: The inputs do not fit.
    """
    return np.asarray(_applied(node, arrays), dtype=arrays[0].dtype)


def _applied(node: gs.Node, arrays: Arrays) -> Array:
    try:
        with np.errstate(all="ignore"):  # an infinity or a NaN is a result
            return RULES[node.op](node, arrays)
    except (IndexError, ValueError, TypeError, AttributeError) as error:
        raise CannotEvaluateError(f"inputs do not fit: {type(error).__name__}") from error


def _size(node: gs.Node, arrays: Arrays) -> int:
    """Return the number of elements of the output, or an upper bound, without computing it."""
    shapes = [array.shape for array in arrays if array is not None]
    try:
        if node.op in ("Expand", "ConstantOfShape"):
            target = tuple(int(dim) for dim in np.asarray(arrays[-1]).ravel())
            return _product(np.broadcast_shapes(*shapes[:-1], target))
        if node.op == "Tile":
            return _product(shapes[0]) * _product(int(n) for n in np.asarray(arrays[1]))
        if node.op == "Range":
            start, end, step = (float(np.asarray(array)) for array in arrays)
            return max(0, math.ceil((end - start) / step))
        if node.op == "Gather":
            axis_length = max(1, shapes[0][attribute_of(node, "axis", 0)])
            return int(_product(shapes[0]) // axis_length * _product(shapes[1]))
        if node.op in _BROADCASTING:
            return _product(np.broadcast_shapes(*shapes))
    except (IndexError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise CannotEvaluateError(f"inputs do not fit: {type(error).__name__}") from error
    return sum(_product(shape) for shape in shapes)  # other ops return no more than they read


def _product(dims: Iterable[int]) -> int:
    return int(math.prod(dims))


def _int_divide(a: Array, b: Array) -> Array:
    """ONNX divides integers toward zero."""
    if not b.all():
        raise CannotEvaluateError("division by zero")
    if a.dtype.kind == "i" and np.any((a == np.iinfo(a.dtype).min) & (b == -1)):
        raise CannotEvaluateError("integer overflow")
    wrong = (np.remainder(a, b) != 0) & ((a < 0) != (b < 0))
    return (a // b + wrong).astype(a.dtype)


def _divide(node: gs.Node, arrays: Arrays) -> Array:
    a, b = arrays
    return _int_divide(a, b) if a.dtype.kind in "iu" else np.divide(a, b)


def _modulo(node: gs.Node, arrays: Arrays) -> Array:
    a, b = arrays
    if a.dtype.kind in "iu" and not b.all():
        raise CannotEvaluateError("division by zero")
    return np.fmod(a, b) if attribute_of(node, "fmod", 0) else np.mod(a, b)


def _ordered(array: Array) -> bool:
    """Whether there is no NaN; ``np.isnan`` does not support every dtype."""
    return bool(np.all(np.equal(array, array)))


def _extremum(function: Callable[..., Array]) -> Rule:
    def rule(node: gs.Node, arrays: Arrays) -> Array:
        result = arrays[0]
        for array in arrays[1:]:
            if not (_ordered(result) and _ordered(array)):
                raise CannotEvaluateError("runtimes disagree on nan")
            if np.any((result == 0) & (array == 0)) and result.dtype.kind not in "iub":
                raise CannotEvaluateError("runtimes disagree on the sign of zero")
            result = function(result, array)
        return result

    return rule


def _where(node: gs.Node, arrays: Arrays) -> Array:
    result: Array = np.where(*arrays)  # onnxruntime returns 0 for -0 (seen in 1.31)
    if result.dtype.kind not in "iub" and np.any((result == 0) & np.signbit(result)):
        raise CannotEvaluateError("runtimes disagree on the sign of zero")
    return result


def _cast_to(array: Array, target: np.dtype) -> Array:
    """Convert values for which every runtime must return the same result."""
    source = array.dtype
    if source == target:
        return array
    if target.kind == "O" or source.name.startswith(("float8", "float4")):
        raise CannotEvaluateError(f"casts from {source.name} to {target.name} are not folded")
    if target.name.startswith(("float8", "float4", "int4", "uint4", "int2", "uint2", "complex")):
        raise CannotEvaluateError(f"casts to {target.name} are not folded")
    if target == np.bool_:
        return array != 0
    if target.kind in "iu" and source.kind not in "iub":
        # The largest int64 becomes 2**63 in float64, which is out of range itself.
        info, values = np.iinfo(target), np.trunc(array.astype(np.float64))
        if not np.all((values >= float(info.min)) & (values < float(info.max) + (info.bits < 64))):
            raise CannotEvaluateError("a float is out of range of the integer type")
    if target in _NARROW and source not in _WIDE[:1] and source not in _NARROW:
        direct, through = array.astype(target), array.astype(np.float32).astype(target)
        if direct.tobytes() != through.tobytes():
            raise CannotEvaluateError("runtimes round this value twice")
    return array.astype(target)


def _axes(node: gs.Node, arrays: Any, index: int) -> tuple[int, ...] | None:
    """Read axes from an input (opset 13 and later) or from an attribute."""
    if index < len(arrays) and arrays[index] is not None:
        return tuple(int(axis) for axis in arrays[index].ravel())
    axes = attribute_of(node, "axes", None)
    return None if axes is None else tuple(axes)


def _reshape(node: gs.Node, arrays: Arrays) -> Array:
    data, target = arrays[0], [int(dim) for dim in arrays[1]]
    if not attribute_of(node, "allowzero", 0):
        target = [data.shape[i] if dim == 0 else dim for i, dim in enumerate(target)]
    return data.reshape(target)


def _flatten(node: gs.Node, arrays: Arrays) -> Array:
    axis = attribute_of(node, "axis", 1)
    shape = arrays[0].shape
    axis += len(shape) if axis < 0 else 0
    return arrays[0].reshape(math.prod(shape[:axis]), math.prod(shape[axis:]))


def _slice(node: gs.Node, arrays: Arrays) -> Array:
    data, starts, ends = arrays[:3]
    axes = _axes(node, arrays, 3) or tuple(range(len(starts)))
    steps = arrays[4] if len(arrays) > 4 and arrays[4] is not None else np.ones_like(starts)
    picks = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        picks[axis] = _bounds(int(start), int(end), int(step), data.shape[axis])
    return data[tuple(picks)]


def _bounds(start: int, end: int, step: int, dim: int) -> slice:
    """Clamp by ONNX's rules; Python's slices differ for an end before the first element."""
    start, end = (bound + dim if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return slice(min(max(start, 0), dim), min(max(end, 0), dim), step)
    stop = min(max(end, -1), dim - 1)
    return slice(min(max(start, 0), dim - 1), None if stop < 0 else stop, step)


def _split(node: gs.Node, arrays: Arrays) -> list[Array]:
    data, axis, parts = arrays[0], attribute_of(node, "axis", 0), len(node.outputs)
    if len(arrays) > 1 and arrays[1] is not None:
        sizes = [int(size) for size in arrays[1]]
    else:  # chunks of equal size, the last may be smaller
        chunk = -(-data.shape[axis] // parts)
        sizes = [min(chunk, data.shape[axis] - i * chunk) for i in range(parts)]
    return np.split(data, np.cumsum(sizes)[:-1], axis=axis)


def _range(node: gs.Node, arrays: Arrays) -> Array:
    start, end, step = arrays
    if start.dtype.kind not in "iu":
        raise CannotEvaluateError("runtimes sum floats in different ways")
    return np.arange(int(start), int(end), int(step), dtype=start.dtype)


def _constant_of_shape(node: gs.Node, arrays: Arrays) -> Array:
    value = node.attrs.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value.values)
    return np.full(tuple(int(dim) for dim in arrays[0]), fill.ravel()[0], dtype=fill.dtype)


def _shape(node: gs.Node, arrays: Arrays) -> Array:
    start, end = attribute_of(node, "start", 0), attribute_of(node, "end", None)
    return np.array(arrays[0].shape[start:end], dtype=np.int64)


def _reduce(function: Callable[..., Array], *, ints_only: bool) -> Rule:
    def rule(node: gs.Node, arrays: Arrays) -> Array:
        data, axes = arrays[0], _axes(node, arrays, 1)
        if ints_only and data.dtype.kind not in "iu":
            raise CannotEvaluateError("the order of a float sum is the runtime's choice")
        if data.size == 0 or not _ordered(data):
            raise CannotEvaluateError("reduction of nothing, or of nan")
        if data.dtype.kind not in "iub" and np.unique(np.signbit(data[data == 0])).size > 1:
            raise CannotEvaluateError("runtimes disagree on the sign of zero")
        if not axes:
            if attribute_of(node, "noop_with_empty_axes", 0):
                return np.asarray(data)
            axes = None
        options = {"axis": axes, "keepdims": bool(attribute_of(node, "keepdims", 1))}
        return np.asarray(function(data, **options)).astype(data.dtype)

    return rule


def _cumsum(node: gs.Node, arrays: Arrays) -> Array:
    data, axis = arrays
    if data.dtype.kind not in "iu" or node.attrs.get("exclusive") or node.attrs.get("reverse"):
        raise CannotEvaluateError("only plain integer sums are folded")
    return np.cumsum(data, axis=int(axis.reshape(())), dtype=data.dtype)


def _trilu(node: gs.Node, arrays: Arrays) -> Array:
    k = int(arrays[1].reshape(())) if len(arrays) > 1 and arrays[1] is not None else 0
    upper = attribute_of(node, "upper", 1)
    rows, columns = arrays[0].shape[-2:]
    keep = np.triu(np.ones((rows, columns), bool), k) if upper else np.tri(rows, columns, k, bool)
    return np.where(keep, arrays[0], np.zeros((), arrays[0].dtype))


def _rounded(function: Callable[..., Array]) -> Rule:
    def rule(node: gs.Node, arrays: Arrays) -> Array:
        dtype = arrays[0].dtype
        if dtype != np.float32 and dtype not in _NARROW:
            raise CannotEvaluateError(f"{node.op} of {dtype.name} is the runtime's choice")
        result = function(*(np.asarray(array, np.float64) for array in arrays))
        return _cast_to(np.asarray(result), dtype)

    return rule


def _plain(function: Callable[..., Any]) -> Rule:
    return lambda node, arrays: function(*arrays)


def _bitwise(function: Callable[..., Array]) -> Rule:
    return lambda node, arrays: np.asarray(function(*arrays)).astype(arrays[0].dtype)


def _shift(node: gs.Node, arrays: Arrays) -> Array:
    numbers, by = arrays
    if np.any(by >= 8 * numbers.dtype.itemsize):  # undefined behavior in C++
        raise CannotEvaluateError("runtimes disagree on shifts by all bits")
    is_left = node.attrs["direction"] == "LEFT"
    return (np.left_shift if is_left else np.right_shift)(numbers, by)


def _clip(node: gs.Node, arrays: Arrays) -> Array:
    data, low, high = (*arrays, None, None)[:3]
    if data.dtype.kind not in "iu":
        raise CannotEvaluateError("only integers are clipped")
    return np.clip(data, low, high)


_ELEMENTWISE: dict[str, Rule] = {
    "Add": _bitwise(np.add),
    "Sub": _bitwise(np.subtract),
    "Mul": _bitwise(np.multiply),
    "Div": _divide,
    "Mod": _modulo,
    "Max": _extremum(np.maximum),
    "Min": _extremum(np.minimum),
    "And": _plain(np.logical_and),
    "Or": _plain(np.logical_or),
    "Xor": _plain(np.logical_xor),
    "Equal": _plain(np.equal),
    "Greater": _plain(np.greater),
    "GreaterOrEqual": _plain(np.greater_equal),
    "Less": _plain(np.less),
    "LessOrEqual": _plain(np.less_equal),
    "Where": _where,
    "BitwiseAnd": _bitwise(np.bitwise_and),
    "BitwiseOr": _bitwise(np.bitwise_or),
    "BitwiseXor": _bitwise(np.bitwise_xor),
    "BitShift": _shift,
}
_ROUNDED: dict[str, Rule] = {
    "Exp": _rounded(np.exp),
    "Log": _rounded(np.log),
    "Sin": _rounded(np.sin),
    "Cos": _rounded(np.cos),
    "Pow": _rounded(np.power),
}
RULES: dict[str, Rule] = {
    **_ELEMENTWISE,
    **_ROUNDED,
    "Abs": _plain(np.abs),
    "Neg": _plain(np.negative),
    "Not": _plain(np.logical_not),
    "BitwiseNot": _plain(np.bitwise_not),
    "Floor": _plain(np.floor),
    "Ceil": _plain(np.ceil),
    "Round": _plain(np.rint),
    "Sqrt": _plain(np.sqrt),  # IEEE 754 requires the correctly rounded result
    "Reciprocal": lambda node, a: np.divide(np.ones((), a[0].dtype), a[0]),
    "Cast": lambda node, a: _cast_to(a[0], ir.DataType(node.attrs["to"]).numpy()),
    "CastLike": lambda node, a: _cast_to(a[0], a[1].dtype),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": lambda node, a: np.squeeze(a[0], axis=_axes(node, a, 1)),
    "Unsqueeze": lambda node, a: np.expand_dims(a[0], axis=_axes(node, a, 1) or ()),
    "Transpose": lambda node, a: np.transpose(a[0], attribute_of(node, "perm", None)),
    "Concat": lambda node, a: np.concatenate(a, axis=node.attrs["axis"]),
    "Split": _split,
    "Slice": _slice,
    "Gather": lambda node, a: np.take(a[0], a[1], axis=attribute_of(node, "axis", 0)),
    "Expand": lambda node, a: np.broadcast_to(
        a[0], np.broadcast_shapes(a[0].shape, tuple(int(dim) for dim in a[1]))
    ),
    "Tile": lambda node, a: np.tile(a[0], [int(n) for n in a[1]]),
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Size": lambda node, a: np.array(a[0].size, dtype=np.int64),
    "ReduceSum": _reduce(np.sum, ints_only=True),
    "ReduceProd": _reduce(np.prod, ints_only=True),
    "ReduceMax": _reduce(np.max, ints_only=False),  # exact in any order
    "ReduceMin": _reduce(np.min, ints_only=False),
    "CumSum": _cumsum,
    "Trilu": _trilu,
    "Clip": _clip,
}
_BROADCASTING = frozenset(_ELEMENTWISE) | {"Pow"}
