"""Selective state spaces in chunks: within a chunk as attention, between chunks as a recurrence.

Dao and Gu 2024, "Transformers are SSMs", section 6. A chunk is no longer than the sequence, so that
one file serves long prompts, and decoding of one token without the work of a whole chunk.

Letters of the axes: batch B, groups G, heads of a group R, chunks C, tokens of a chunk L, head_dim
P, state N. ``x`` and the queries are transposed, so that no product needs a transposition, and
chunks come first, as ``Scan`` takes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from coreai_onnx.export.compat.state_space import NAMESPACE
from coreai_onnx.export.compat.torch_names import FloorDiv, Max, Min
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.loops import scan_with_outputs
from coreai_onnx.lower.nodes.values import Dim, Value, as_dim, dims_of, rank_of, set_dims
from coreai_onnx.lower.walk.registry import lowers

_ALL = 2**62
"""The end of a slice without an end."""


@lowers(f"{NAMESPACE}.scan.default")
def scan(
    op: OpBuilder,
    x: Value,
    decay: Value,
    key: Value,
    query: Value,
    initial: Value | None,
    longest: int,
) -> list[Value]:
    """For each token: S = exp(decay) S + x key^T, y = S query."""
    batch, length, heads, width = dims_of(x)
    groups, size = dims_of(key)[2:]
    each = as_dim(heads // groups)
    chunks = _chunks_of(length, longest)
    x = chunks.split(op, x, (groups, each, width), (1, 0, 3, 4, 5, 2))  # C B G R P L
    query = chunks.split(op, query, (groups, 1, size), (1, 0, 3, 4, 5, 2))  # C B G 1 N L
    key = chunks.split(op, key, (groups, 1, size), (1, 0, 3, 4, 2, 5))  # C B G 1 L N
    decay = chunks.split(op, decay, (groups, each), (1, 0, 3, 4, 2))  # C B G R L
    between = _decay_between(op, decay)
    within = op.MatMul(x, op.Mul(op.MatMul(key, query), between))
    last_column = set_dims(op.slice(between, 5, -1, _ALL), (*dims_of(between)[:5], 1))
    to_the_end = op.transpose(last_column, (0, 1, 2, 3, 5, 4))
    added = op.MatMul(op.Mul(x, to_the_end), key)
    total = op.Exp(op.unsqueeze(op.CumSum(decay, -1), [4]))
    dims = (batch, groups, each, width, size)
    state = op.expand(op.const(0.0), dims) if initial is None else op.reshape(initial, dims)
    last, earlier = _between(op, state, added, op.slice(total, 5, -1, _ALL), query)
    outputs = op.Add(within, op.Mul(earlier, total))
    outputs = chunks.join(op, outputs, (batch, length, heads, width))
    return [outputs, op.reshape(last, (batch, heads, width, size))]


@dataclass(frozen=True)
class _Chunks:
    """The division of a sequence in chunks of equal length, the last one padded.

    Attributes:
        length: The length of the sequence.
        size: The length of a chunk.
        count: The number of chunks.
    """

    length: Dim
    size: Dim
    count: Dim

    @property
    def padded(self) -> Dim:
        """The length of all chunks."""
        return as_dim(self.size * self.count)

    def split(self, op: OpBuilder, x: Value, dims: tuple[Dim, ...], perm: tuple[int, ...]) -> Value:
        """Return ``[B, seq, ...]`` as ``[B, C, L, *dims]`` with the axes permuted."""
        rank, missing = rank_of(x), as_dim(self.padded - self.length)
        padded = op.Pad(x, op.shape([0] * (rank + 1) + [missing] + [0] * (rank - 2)))
        inner = (dims_of(x)[0], self.count, self.size, *dims)
        return op.transpose(op.reshape(padded, inner), perm)

    def join(self, op: OpBuilder, x: Value, dims: tuple[Dim, ...]) -> Value:
        """Return ``[C, B, G, R, P, L]`` as ``[batch, seq, heads, head_dim]``, the given dims."""
        batch, length, *further = dims
        tokens = op.transpose(x, (1, 0, 5, 2, 3, 4))
        padded = op.reshape(tokens, (batch, self.padded, *further))
        return set_dims(op.slice(padded, 1, 0, length), dims)


def _chunks_of(length: Dim, longest: int) -> _Chunks:
    # At least 1, because the length is divided by it.
    size = as_dim(Max(1, Min(length, longest)))
    return _Chunks(length, size, as_dim(FloorDiv(length + size - 1, size)))


def _between(
    op: OpBuilder, state: Value, added: Value, rate: Value, query: Value
) -> tuple[Value, Value]:
    """Return the state after the last chunk, and what the queries read of those before their chunk.

    Args:
        op: The builder.
        state: The state before the first chunk, ``[B, G, R, P, N]``.
        added: What each chunk adds, ``[C, B, G, R, P, N]``.
        rate: The decay in each chunk, ``[C, B, G, R, 1, 1]``.
        query: ``[C, B, G, 1, N, L]``.
    """
    count, inner_dims = dims_of(query)[0], dims_of(state)
    set_dims(added, (count, *inner_dims))
    set_dims(rate, (count, *inner_dims[:3], 1, 1))

    def step(inner: OpBuilder, before: Value, slices: list[Value]) -> tuple[Value, Value]:
        added, rate, query = slices
        return inner.Add(inner.Mul(before, rate), added), inner.MatMul(before, query)

    return scan_with_outputs(op, state, [added, rate, query], step)


def _decay_between(op: OpBuilder, decay: Value) -> Value:
    """Return the decay from each token of a chunk to each later one.

    Sums are taken of the tokens between, because a difference of two sums from the start would lose
    digits.

    Args:
        op: The builder.
        decay: Logarithms, ``[C, B, G, R, L]``.

    Returns:
        ``[C, B, G, R, L, L]``: row ``i``, column ``j`` is ``exp`` of the sum of ``decay[k]`` for
        ``i < k <= j``, and 0 for ``j < i``.
    """
    *outer, size = dims_of(decay)
    rows = op.expand(op.unsqueeze(decay, [4]), (*outer, size, size))
    sums = op.CumSum(op.Trilu(rows, op.const(1), upper=1), -1)
    return op.Trilu(op.Exp(sums), upper=1)
