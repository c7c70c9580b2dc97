"""Random tensors. The numbers differ from torch's; their distributions are the same.

onnxruntime has no kernels of RandomUniform and RandomNormal from `FIRST_OPSET_WITHOUT_RANDOM` on,
but one of Dropout: the mask of a dropout with probability one half is a random bit per element, and
random bits form uniform numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.composites.checks import compute_dtype
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.inference import broadcast_dims
from coreai_onnx.lower.nodes.tensors import filled, reduced
from coreai_onnx.lower.nodes.values import (
    Dim,
    Number,
    Value,
    dims_of,
    dtype_of,
    is_static,
    rank_of,
    set_dims,
    wrap,
)
from coreai_onnx.lower.walk.registry import lowers
from coreai_onnx.targets.defects import FIRST_OPSET_WITHOUT_RANDOM


# ---------------------------------------------------------------------- sources of randomness
def _random_op(op: OpBuilder, op_type: str, size: Sequence[Dim], wide: torch.dtype) -> Value:
    """Return the result of one of ONNX's random ops."""
    kind = ir.DataType.DOUBLE if wide == torch.float64 else ir.DataType.FLOAT
    if is_static(size):
        result = op.node(op_type, shape=[int(d) for d in size], dtype=int(kind))
    else:
        # The shape of RandomUniform and RandomNormal is an attribute, which cannot be symbolic.
        result = op.node(f"{op_type}Like", filled(op, size, 0, wide), dtype=int(kind))
    result.dtype = kind
    return set_dims(result, tuple(size))


def _random_bits(op: OpBuilder, size: Sequence[Dim], wide: torch.dtype) -> Value:
    """Return Σ bit_k / 2ᵏ, with as many bits as the significand of the dtype has."""
    count = 53 if wide == torch.float64 else 24
    powers = op.const((0.5 ** torch.arange(1, count + 1)).to(wide))
    column = op.unsqueeze(powers, list(range(1, len(size) + 1)))
    _, bits = op.Dropout(op.expand(column, [count, *size]), 0.5, True, _outputs=2)
    bits.dtype = ir.DataType.BOOL
    set_dims(bits, (count, *size))
    return reduced(op, "ReduceSum", op.Where(bits, column, 0.0), 0, keepdim=False)


def uniform_numbers(op: OpBuilder, size: Sequence[Dim], dtype: torch.dtype) -> Value:
    """Return uniform numbers in [0, 1)."""
    wide = compute_dtype(dtype)
    if op.opset < FIRST_OPSET_WITHOUT_RANDOM:
        numbers = _random_op(op, "RandomUniform", size, wide)
    else:
        numbers = _random_bits(op, size, wide)
    return op.cast(numbers, dtype)


def normal_numbers(op: OpBuilder, size: Sequence[Dim], dtype: torch.dtype) -> Value:
    """Return standard normal numbers (from uniform ones: Box and Muller, 1958)."""
    wide = compute_dtype(dtype)
    if op.opset < FIRST_OPSET_WITHOUT_RANDOM:
        return op.cast(_random_op(op, "RandomNormal", size, wide), dtype)
    radius = op.Sqrt(op.Mul(_exponential(op, size, wide), 2.0))
    angle = op.Mul(uniform_numbers(op, size, wide), 2 * math.pi)
    return op.cast(op.Mul(radius, op.Cos(angle)), dtype)


def _integers(op: OpBuilder, low: Any, high: Any, size: Sequence[Dim], dtype: torch.dtype) -> Value:
    """Return integers from low to high - 1."""
    # float32 would not reach every integer above 2 ** 24.
    numbers = uniform_numbers(op, size, torch.float64)
    first, beyond = (_double(op, x) for x in (low, high))
    whole = op.Floor(op.Mul(numbers, op.Sub(beyond, first)))
    return op.cast(op.cast(op.Add(whole, first), torch.int64), dtype)


def _double(op: OpBuilder, x: Any) -> Value:
    if isinstance(x, ir.Value):
        return op.cast(x, torch.float64)
    if isinstance(x, int | float):
        return op.const(float(x), torch.float64)
    return op.cast(op.dim(x), torch.float64)


# ---------------------------------------------------------------------- by size
@lowers("aten.rand.default", "aten.rand.generator", source=uniform_numbers)
@lowers("aten.randn.default", "aten.randn.generator", source=normal_numbers)
def drawn(
    op: OpBuilder,
    size: Sequence[Dim],
    *,
    dtype: torch.dtype | None = None,
    source: Callable[..., Value],
) -> Value:
    """Random numbers."""
    return source(op, size, dtype or torch.get_default_dtype())


@lowers("aten.rand_like.default", source=uniform_numbers)
@lowers("aten.randn_like.default", source=normal_numbers)
def drawn_like(
    op: OpBuilder, self: Value, *, dtype: torch.dtype | None = None, source: Callable[..., Value]
) -> Value:
    """Random numbers with the sizes of self."""
    return source(op, dims_of(self), dtype or dtype_of(self))


@lowers("aten.randint.default", "aten.randint.low")
def randint(
    op: OpBuilder,
    high: Dim,
    size: Sequence[Dim],
    low: Dim = 0,
    *,
    dtype: torch.dtype | None = torch.int64,
) -> Value:
    """Integers of low … high - 1."""
    return _integers(op, low, high, size, dtype or torch.int64)


@lowers("aten.randint_like.default", "aten.randint_like.low_dtype")
def randint_like(
    op: OpBuilder, self: Value, high: Dim, low: Dim = 0, *, dtype: torch.dtype | None = None
) -> Value:
    """Integers of low … high - 1 with the sizes of self."""
    return _integers(op, low, high, dims_of(self), dtype or dtype_of(self))


@lowers("aten.randperm.default")
def randperm(op: OpBuilder, n: Dim, *, dtype: torch.dtype | None = torch.int64) -> Value:
    """0 … n - 1 in random order, by sorting random numbers."""
    numbers = uniform_numbers(op, [n], torch.float32)
    order = op.TopK(numbers, op.shape([n]), _outputs=2)[1]
    return op.cast(set_dims(order, (n,)), dtype or torch.int64)


# ---------------------------------------------------------------------- distributions
@lowers("aten.normal.float_float")
@lowers("prims.normal.default", renamed={"size": "shape"})
def normal(
    op: OpBuilder,
    mean: Number,
    std: Number,
    size: Sequence[Dim],
    *,
    dtype: torch.dtype | None = None,
) -> Value:
    """Normal numbers of a mean and a deviation."""
    numbers = normal_numbers(op, size, dtype or torch.get_default_dtype())
    return op.Add(op.Mul(numbers, float(std)), float(mean))


@lowers("aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor")
def normal_tensor(op: OpBuilder, mean: Value | float, std: Value | float = 1.0) -> Value:
    """Normal numbers with a mean or a deviation per element."""
    tensors = [x for x in (mean, std) if isinstance(x, ir.Value)]
    dims = dims_of(tensors[0])
    for x in tensors[1:]:
        dims = broadcast_dims(dims, dims_of(x))
    numbers = normal_numbers(op, dims, dtype_of(tensors[0]))
    return op.Add(op.Mul(numbers, std), mean)


@lowers("aten.normal_functional.default")
def normal_functional(op: OpBuilder, self: Value, mean: float = 0.0, std: float = 1.0) -> Value:
    """Normal numbers with the sizes of self."""
    return op.Add(op.Mul(normal_numbers(op, dims_of(self), dtype_of(self)), std), mean)


@lowers("aten.uniform.default")
@lowers("prims.uniform.default", renamed={"from_": "low", "to": "high"})
def uniform(
    op: OpBuilder,
    self: Value | None = None,
    from_: Number = 0.0,
    to: Number = 1.0,
    *,
    shape: Sequence[Dim] = (),
    dtype: torch.dtype = torch.float32,
) -> Value:
    """Uniform numbers in [from, to), with the sizes and dtype of self if given."""
    if self is not None:
        shape, dtype = dims_of(self), dtype_of(self)
    numbers = uniform_numbers(op, shape, dtype)
    return op.Add(op.Mul(numbers, float(to) - float(from_)), float(from_))


@lowers("aten.bernoulli.default", "aten.bernoulli.Tensor")
def bernoulli(op: OpBuilder, self: Value, p: Value | None = None) -> Value:
    """1 with the probability given by p or self, else 0."""
    p = self if p is None else p
    numbers = uniform_numbers(op, dims_of(self), dtype_of(p))
    return op.cast(op.Less(numbers, p), dtype_of(self))


@lowers("aten.bernoulli.p")
def bernoulli_p(op: OpBuilder, self: Value, p: float) -> Value:
    """1 with probability p, else 0."""
    numbers = uniform_numbers(op, dims_of(self), torch.float32)
    return op.cast(op.Less(numbers, p), dtype_of(self))


@lowers("aten.exponential.default")
def exponential(op: OpBuilder, self: Value, lambd: float = 1.0) -> Value:
    """-log(1 - u) / λ."""
    return op.Div(_exponential(op, dims_of(self), dtype_of(self)), lambd)


def _exponential(op: OpBuilder, size: Sequence[Dim], dtype: torch.dtype) -> Value:
    # 1 - u is in (0, 1], so that its logarithm is finite.
    return op.Neg(op.Log(op.Sub(1.0, uniform_numbers(op, size, dtype))))


@lowers("aten.geometric.default")
def geometric(op: OpBuilder, self: Value, p: float) -> Value:
    """The number of trials until the first success: ⌈log(1 - u) / log(1 - p)⌉."""
    waits = op.Div(_exponential(op, dims_of(self), torch.float64), -math.log1p(-p))
    # u = 0 would give no trial.
    return op.cast(op.Max(op.Ceil(waits), 1.0), dtype_of(self))


@lowers("aten.cauchy.default")
def cauchy(op: OpBuilder, self: Value, median: float = 0.0, sigma: float = 1.0) -> Value:
    """median + σ tan(π (u - ½))."""
    angle = op.Mul(op.Sub(uniform_numbers(op, dims_of(self), torch.float32), 0.5), math.pi)
    return op.cast(op.Add(op.Mul(op.Tan(angle), sigma), median), dtype_of(self))


@lowers("aten.log_normal.default")
def log_normal(op: OpBuilder, self: Value, mean: float = 1.0, std: float = 2.0) -> Value:
    """exp of normal numbers."""
    return op.Exp(normal_functional(op, self, mean, std))


@lowers("aten.multinomial.default")
def multinomial(
    op: OpBuilder, self: Value, num_samples: Dim, *, replacement: bool = False
) -> Value:
    """Indices drawn with the weights of self along the last axis.

    With replacement: the number of cumulative weights below a uniform number. Without replacement:
    the indices of the least e / w, e exponential (Efraimidis and Spirakis, 2006).
    """
    axis = wrap(-1, rank_of(self))
    dims = dims_of(self)
    if not replacement:
        # The greatest w / e are the least e / w; weights of zero come last.
        keys = op.Div(self, _exponential(op, dims, dtype_of(self)))
        return op.TopK(keys, op.shape([num_samples]), axis=axis, _outputs=2)[1]
    total = op.CumSum(op.cast(self, torch.float64), op.const(axis))
    whole = op.ReduceSum(op.cast(self, torch.float64), [axis], keepdims=1)
    draws = op.Mul(uniform_numbers(op, [*dims[:-1], num_samples], torch.float64), whole)
    # Equal sums count, so that a draw of 0 passes leading weights of zero.
    below = op.LessOrEqual(op.unsqueeze(total, [axis]), op.unsqueeze(draws, [axis + 1]))
    return op.ReduceSum(op.cast(below, torch.int64), [-1], keepdims=0)
