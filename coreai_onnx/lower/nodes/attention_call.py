"""Calls of composites with tensors whose ranks may differ from the declaration."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coreai_onnx.composites import COMPOSITES, Composite
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.inference import broadcast_dims
from coreai_onnx.lower.nodes.values import Dims, Value, dims_of, dtype_of, numel, rank_of, set_dims


def call_attention(
    op: OpBuilder,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any],
    *,
    grouped: bool,
) -> Value:
    """Call the composite, which takes rank 4, on ``[..., heads, length, dim]``.

    Leading dims are broadcast against each other, as in ``torch.matmul``, and merged.

    Args:
        op: Creates the nodes.
        inputs: query, key, value, and optionally attn_mask and sinks, of rank 2 or higher; a tensor
            of rank 2 has one head.
        attributes: The attributes of the composite; ``scale`` defaults to ``head_dim ** -0.5``.
        grouped: Whether keys and values may have fewer heads than queries, each for a group of
            them; otherwise heads are broadcast like the leading dims.

    Returns:
        ``[..., heads, query_length, value_dim]``, without heads if no input has any.
    """
    padded: list[Value | None] = [*inputs, *[None] * (4 - len(inputs))]
    query, key, value, mask, *sinks = padded
    assert query is not None
    assert key is not None
    assert value is not None
    shapes = [_with_heads(dims_of(x)) for x in (query, key, value)]
    lead, heads = _broadcast(dims[:-3] for dims in shapes), shapes[0][-3]
    if not grouped:
        (heads,) = _broadcast(dims[-3:-2] for dims in shapes)
    query, scale = _scaled(op, query, attributes.get("scale"))
    result = op.composite(
        "scaled_dot_product_attention",
        [
            _merged(op, query, (*lead, heads)),
            *(_merged(op, x, (*lead, _with_heads(dims_of(x))[-3])) for x in (key, value)),
            None if mask is None else _merged_mask(op, mask, lead),
            *sinks,
        ],
        **{**attributes, "scale": scale},
    )
    inner = heads, dims_of(query)[-2], dims_of(value)[-1]
    set_dims(result, (numel(lead), *inner))
    has_heads = max(rank_of(x) for x in (query, key, value)) > 2
    return op.reshape(result, (*lead, *inner) if has_heads else inner[1:])


def call_of_module(
    op: OpBuilder,
    composite: Composite,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any],
) -> list[Value]:
    """Call a composite with the inputs of a module that computes it; return its outputs.

    Modules compute attention with any number of leading dims; the composite has one.

    Args:
        op: Creates the nodes.
        composite: Its declaration.
        inputs: By position; None for absent ones.
        attributes: Its attributes.

    Raises:
        CompositeCallError: If the composite does not accept these inputs or attributes.
    """
    if composite is COMPOSITES["scaled_dot_product_attention"]:
        return [call_attention(op, inputs, attributes, grouped=True)]
    return op.composite_outputs(composite, inputs, **attributes)


def _with_heads(dims: Dims) -> Dims:
    return dims if len(dims) > 2 else (1, *dims)


def _broadcast(shapes: Iterable[Dims]) -> Dims:
    return functools.reduce(broadcast_dims, shapes)


def _merged(op: OpBuilder, x: Value, lead: Dims) -> Value:
    """Return ``x`` broadcast to these leading dims, with all dims before the heads merged."""
    dims = dims_of(x)
    # Only heads: a batch axis of 1 needs no Reshape, and so no sizes at run time.
    if len(lead) == 1:
        x = op.unsqueeze(x, list(range(4 - len(dims))))
        return op.expand(x, (1, *lead, *dims[-2:]))
    wide = op.expand(x, (*lead, *dims[-2:]))
    return op.reshape(wide, (numel(lead[:-1]), lead[-1], *dims[-2:]))


def _merged_mask(op: OpBuilder, mask: Value, lead: Dims) -> Value:
    """Return a mask that is broadcastable to ``[batch, heads, queries, keys]``."""
    dims = dims_of(mask)
    if len(dims) < 4:
        return mask if lead else op.unsqueeze(mask, list(range(4 - len(dims))))
    # To merge it like the inputs would repeat the mask for every batch.
    if all(dim == 1 for dim in dims[:-3]):
        return op.reshape(mask, (1, *dims[-3:]))
    return mask if len(lead) < 2 else _merged(op, mask, (*lead, dims[-3]))


def _scaled(op: OpBuilder, query: Value, scale: float | None) -> tuple[Value, float]:
    """Return query and scale; for a symbolic head size the query itself is scaled."""
    head_dim = dims_of(query)[-1]
    if scale is not None:
        return query, scale
    if isinstance(head_dim, int):
        return query, float(head_dim) ** -0.5
    # An attribute cannot hold a number that is known only at run time.
    root = op.Sqrt(op.cast(op.dim(head_dim), dtype_of(query)))
    return op.Div(query, root), 1.0
