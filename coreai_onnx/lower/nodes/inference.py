"""Shape inference for values inside a lowering.

The results of a whole lowering get their dims from the exported program. These rules are only for
lowerings that chain ops and need a rank or a dim in between. The dims of ops without a rule are
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from coreai_onnx.lower.nodes.values import Dim, Dims

Rule = Callable[[Sequence[ir.Value | None], Mapping[str, Any]], Dims | None]

_BROADCAST = (
    "Add Sub Mul Div Pow Mod And Or Xor Equal Greater Less GreaterOrEqual LessOrEqual Where "
    "BitwiseAnd BitwiseOr BitwiseXor BitShift Max Min Sum Mean PRelu"
).split()
_SAME_AS_FIRST = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh CumSum "
    "Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log LogSoftmax "
    "Mish Neg Not Reciprocal Relu Round ScatterElements ScatterND Selu Sigmoid Sign Sin Sinh "
    "Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Trilu LayerNormalization "
    "RMSNormalization InstanceNormalization GroupNormalization BatchNormalization"
).split()


def _real_dims(x: ir.Value) -> Dims | None:
    """Return the dims in ONNX: those of a complex value include the trailing axis of 2."""
    dims: Dims | None = x.meta.get("dims")
    return dims


def broadcast_dims(first: Dims, second: Dims) -> Dims:
    """Return the dims of two operands broadcast against each other, aligned from the right."""
    if len(first) < len(second):
        first, second = second, first
    lead = len(first) - len(second)
    return first[:lead] + tuple(
        _broadcast_dim(a, b) for a, b in zip(first[lead:], second, strict=True)
    )


def _broadcast_dim(a: Dim, b: Dim) -> Dim:
    if a == 1:
        return b
    if b == 1 or a == b:
        return a
    # torch found both sizes equal; the one that is a number says more.
    return b if isinstance(b, int) else a


def _broadcast(inputs: Sequence[ir.Value | None], _attrs: Mapping[str, Any]) -> Dims | None:
    result: Dims = ()
    for x in inputs:
        dims = _real_dims(x) if x is not None else None
        if dims is None:
            return None
        result = broadcast_dims(result, dims)
    return result


def _first(inputs: Sequence[ir.Value | None], _attrs: Mapping[str, Any]) -> Dims | None:
    return _real_dims(inputs[0]) if inputs and inputs[0] is not None else None


def _transpose(inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any]) -> Dims | None:
    dims = _first(inputs, attrs)
    if dims is None:
        return None
    perm = attrs.get("perm") or tuple(reversed(range(len(dims))))
    return tuple(dims[p] for p in perm)


def _shape(inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any]) -> Dims | None:
    dims = _first(inputs, attrs)
    if dims is None:
        return None
    return (len(dims[attrs.get("start", 0) : attrs.get("end", len(dims))]),)


def _matmul(inputs: Sequence[ir.Value | None], _attrs: Mapping[str, Any]) -> Dims | None:
    a, b = (_real_dims(x) if x is not None else None for x in inputs[:2])
    if a is None or b is None or not a or not b:
        return None
    batch = broadcast_dims(a[:-2], b[:-2])
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    return batch + rows + columns


def _reduced(inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any]) -> Dims | None:
    dims, axes = _first(inputs, attrs), _axes(inputs, attrs)
    if dims is None or axes is None:
        return None
    # ONNX reduces all axes by default (noop_with_empty_axes=0).
    axes = {a % len(dims) for a in axes} if axes else set(range(len(dims)))
    if attrs.get("keepdims", 1):
        return tuple(1 if i in axes else d for i, d in enumerate(dims))
    return tuple(d for i, d in enumerate(dims) if i not in axes)


def _squeeze(inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any]) -> Dims | None:
    dims, axes = _first(inputs, attrs), _axes(inputs, attrs)
    # Without axes, Squeeze removes every size of 1, which a symbol may be.
    if dims is None or not axes:
        return None
    gone = {a % len(dims) for a in axes}
    return tuple(d for i, d in enumerate(dims) if i not in gone)


def _unsqueeze(inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any]) -> Dims | None:
    dims, axes = _first(inputs, attrs), _axes(inputs, attrs)
    if dims is None or axes is None:
        return None
    rank = len(dims) + len(axes)
    new = {a % rank for a in axes}
    rest = iter(dims)
    return tuple(1 if i in new else next(rest) for i in range(rank))


def _axes(inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any]) -> set[int] | None:
    """Return the axes given as an attribute or as a constant second input; None if unknown."""
    if "axes" in attrs:
        return set(attrs["axes"])
    if len(inputs) < 2 or inputs[1] is None:
        return set()
    constant = inputs[1].const_value
    return None if constant is None else {int(a) for a in constant.numpy().reshape(-1)}


def _sized_by_input(inputs: Sequence[ir.Value | None], _attrs: Mapping[str, Any]) -> Dims | None:
    """Return the dims of an op whose last input is the target shape, if ``op.shape`` built it."""
    return inputs[-1].meta.get("holds") if inputs and inputs[-1] is not None else None


def _expand(inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any]) -> Dims | None:
    dims, target = _first(inputs, attrs), _sized_by_input(inputs, attrs)
    return None if dims is None or target is None else broadcast_dims(dims, target)


def _gather(inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any]) -> Dims | None:
    dims = _first(inputs, attrs)
    index = _real_dims(inputs[1]) if inputs[1] is not None else None
    if dims is None or index is None or not dims:
        return None
    axis = attrs.get("axis", 0) % len(dims)
    return dims[:axis] + index + dims[axis + 1 :]


def _gather_elements(inputs: Sequence[ir.Value | None], _attrs: Mapping[str, Any]) -> Dims | None:
    return _real_dims(inputs[1]) if inputs[1] is not None else None


def _concat(inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any]) -> Dims | None:
    shapes = [_real_dims(x) if x is not None else None for x in inputs]
    if any(s is None for s in shapes) or not shapes or not shapes[0]:
        return None
    axis = attrs["axis"] % len(shapes[0])
    total: Dim = 0
    for s in shapes:
        total = total + s[axis]  # type: ignore[index]  # None was excluded above
    return (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


RULES: dict[str, Rule] = {
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(_SAME_AS_FIRST, _first),
    "Transpose": _transpose,
    "Shape": _shape,
    "MatMul": _matmul,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _sized_by_input,
    "ConstantOfShape": _sized_by_input,
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Concat": _concat,
    **dict.fromkeys(
        (
            "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 "
            "ReduceLogSumExp ReduceSumSquare ReduceLogSum"
        ).split(),
        _reduced,
    ),
}


def infer_dims(
    op_type: str, inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any]
) -> Dims | None:
    """Return the dims of the first output, or None if they do not follow from the inputs."""
    rule = RULES.get(op_type)
    return rule(inputs, attrs) if rule is not None else None
