"""Losses whose torch decomposition is inefficient or loses digits of 16-bit floats."""

from __future__ import annotations

import torch

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.promotion import promote
from coreai_onnx.lower.nodes.values import (
    Dim,
    Value,
    dims_of,
    dtype_of,
    is_bool,
    is_float,
    rank_of,
    set_dims,
)
from coreai_onnx.lower.walk.registry import lowers

_NONE, _MEAN, _SUM = 0, 1, 2


def reduced(op: OpBuilder, x: Value, reduction: int) -> Value:
    """Return a loss per element, or its mean or sum, by torch's reduction number."""
    if reduction == _NONE:
        return x
    return op.ReduceMean(x, keepdims=0) if reduction == _MEAN else op.ReduceSum(x, keepdims=0)


# ---------------------------------------------------------------------- likelihoods of classes
@lowers("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss_forward(
    op: OpBuilder,
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: Dim,
) -> tuple[Value, Value]:
    """-weight[target] * self[target], averaged over the weights, and the sum of the weights.

    self is [N, C, …] or [C].
    """
    axis = 1 if rank_of(self) > 1 else 0
    places = op.cast(target, torch.int64)
    used = op.Not(op.Equal(places, ignore_index))
    # ignore_index, -100 by default, would be out of range.
    safe = op.Where(used, places, op.const(0))
    picked = op.Squeeze(op.GatherElements(self, op.Unsqueeze(safe, [axis]), axis=axis), [axis])
    if weight is None:
        weights = op.cast(used, dtype_of(self))
    else:
        weights = op.Where(used, op.Gather(weight, safe, axis=0), op.like(weight, 0))
    # Where, not a weight of zero: 0 * -inf would be NaN.
    losses = op.Where(used, op.Neg(op.Mul(picked, weights)), op.like(self, 0))
    total = op.ReduceSum(weights, keepdims=0)
    if reduction == _NONE:
        # Without a reduction, torch leaves the sum of the weights at zero.
        return losses, op.like(self, 0)
    loss = op.ReduceSum(losses, keepdims=0)
    return (op.Div(loss, total) if reduction == _MEAN else loss), total


@lowers("aten.cross_entropy_loss.default")
def cross_entropy_loss(
    op: OpBuilder,
    self: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = 1,
    ignore_index: Dim = -100,
    label_smoothing: float = 0.0,
) -> Value:
    """The negative log-likelihood of log-softmax; the target holds classes or probabilities."""
    axis = 1 if rank_of(self) > 1 else 0
    logs = op.LogSoftmax(self, axis=axis)
    shape = [-1, *[1] * (rank_of(self) - axis - 1)]
    factors = None if weight is None else op.Reshape(weight, shape)
    classes = dims_of(self)[axis]
    if is_float(target):
        return _soft(op, logs, target, factors, axis, reduction, label_smoothing, classes)
    loss, total = nll_loss_forward(op, logs, target, weight, reduction, ignore_index)
    if label_smoothing == 0:
        return loss
    weighted = logs if factors is None else op.Mul(logs, factors)
    spread = op.Neg(op.ReduceSum(weighted, [axis], keepdims=0))
    used = op.Not(op.Equal(op.cast(target, torch.int64), ignore_index))
    # Ignored targets count in neither of the two terms.
    spread = op.Where(used, spread, op.like(spread, 0))
    if reduction != _NONE:
        spread = op.ReduceSum(spread, keepdims=0)
    if reduction == _MEAN:
        spread = op.Div(spread, total)
    share = op.Div(op.like(logs, label_smoothing), op.cast(op.dim(classes), dtype_of(logs)))
    return op.Add(op.Mul(loss, 1 - label_smoothing), op.Mul(spread, share))


@lowers("torch_nn._linear_cross_entropy_batch_chunked.default")
@lowers("torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default")
def chunked_linear_cross_entropy(
    op: OpBuilder,
    input: Value,
    linear_weight: Value,
    target: Value,
    linear_bias: Value | None,
    weight: Value | None,
    ignore_index: Dim,
    acc_dtype: torch.dtype,
    *,
    reduction: str = "none",
    label_smoothing: float = 0.0,
) -> Value | tuple[Value | None, ...]:
    """The cross entropy of input @ linear_weightᵀ + bias, without chunks and gradients."""
    turned = op.transpose(op.cast(linear_weight, acc_dtype), [1, 0])
    logits = op.MatMul(op.cast(input, acc_dtype), turned)
    if linear_bias is not None:
        logits = op.Add(logits, op.cast(linear_bias, acc_dtype))
    set_dims(logits, (dims_of(input)[0], dims_of(linear_weight)[0]))
    factors = None if weight is None else op.cast(weight, acc_dtype)
    number = {"none": _NONE, "mean": _MEAN}.get(reduction, _SUM)
    loss = cross_entropy_loss(op, logits, target, factors, number, ignore_index, label_smoothing)
    return loss if reduction == "none" else (loss, None, None, None)


def _soft(
    op: OpBuilder,
    logs: Value,
    target: Value,
    factors: Value | None,
    axis: int,
    reduction: int,
    smoothing: float,
    classes: Dim,
) -> Value:
    """Return the cross entropy with class probabilities; its mean is over all other axes."""
    if smoothing > 0:
        share = op.Div(op.like(target, smoothing), op.cast(op.dim(classes), dtype_of(target)))
        target = op.Add(op.Mul(target, 1 - smoothing), share)
    terms = op.Mul(*promote(op, logs, target))
    if factors is not None:
        terms = op.Mul(terms, op.cast(factors, dtype_of(terms)))
    return reduced(op, op.Neg(op.ReduceSum(terms, [axis], keepdims=0)), reduction)


# ---------------------------------------------------------------------- margins
@lowers("aten.hinge_embedding_loss.default")
def hinge_embedding_loss(
    op: OpBuilder, self: Value, target: Value, margin: float = 1.0, reduction: int = 1
) -> Value:
    """self where the target is 1, max(0, margin - self) where it is -1."""
    if dtype_of(self) in (torch.float16, torch.bfloat16):
        # Losses of both signs cancel: torch's decomposition, which rounds each of them, is off by
        # more than torch's own kernel.
        self = op.cast(self, torch.float32)
    if is_bool(target):
        target = op.cast(target, torch.int64)  # -1 as a boolean would be true
    zero = op.like(self, 0)
    far = op.Where(op.Equal(target, 1), zero, op.Max(op.Sub(margin, self), zero))
    near = op.Where(op.Equal(target, -1), zero, self)
    return reduced(op, op.Add(far, near), reduction)


@lowers("aten.multilabel_margin_loss_forward.default")
def multilabel_margin_loss_forward(
    op: OpBuilder, self: Value, target: Value, reduction: int
) -> tuple[Value, Value]:
    """The same, and which classes are targets; targets end at the first -1."""
    x = (
        self
        if rank_of(self) > 1
        else op.reshape(self, [1] * (2 - rank_of(self)) + [*dims_of(self)])
    )
    labels = op.reshape(target, dims_of(x))
    classes = dims_of(x)[1]
    ended = op.CumSum(op.cast(op.Less(labels, 0), torch.int64), op.const(1))
    valid = op.Equal(ended, 0)
    safe = op.Where(valid, labels, op.const(0))
    flags = op.cast(valid, torch.int64)
    nothing = op.expand(op.const(0), dims_of(x))
    # Labels after the end write 0 to class 0; the maximum keeps a 1 that a label wrote there.
    hits = op.ScatterElements(nothing, safe, flags, axis=1, reduction="max")
    is_target = op.Greater(hits, 0)
    scores = op.GatherElements(x, safe, axis=1)
    gap = op.Sub(op.like(x, 1), op.Sub(op.Unsqueeze(scores, [2]), op.Unsqueeze(x, [1])))
    counted = op.And(op.Unsqueeze(valid, [2]), op.Not(op.Unsqueeze(is_target, [1])))
    terms = op.Where(counted, op.Max(gap, 0), op.like(gap, 0))
    size = op.cast(op.dim(classes), dtype_of(x))
    losses = op.Div(op.ReduceSum(terms, [1, 2], keepdims=0), size)
    loss = reduced(op, losses, reduction)
    return loss, op.reshape(op.cast(is_target, dtype_of(x)), dims_of(target))
