"""Composites as torch ops, each of which is one node of an exported program, for any sizes.

``coreai::composite`` calls any composite with one output. Five composites are ops of their own,
which become calls of their composites: torch would export ``gather_mm`` and ``gather_mm_nbits`` as
a copy of a weight per token, and ``gated_delta_update`` as an unrolled loop; ``all_reduce`` and
``all_gather`` have no results in the process of one rank. None has gradients.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from coreai_onnx.composites import few_bits, gated_delta, products
from coreai_onnx.composites.declaration import Composite
from coreai_onnx.model.weight_formats import BY_ROW, NAMES

_LIBRARY = torch.library.Library("coreai", "FRAGMENT")
# One schema serves all composites: their attributes, of any type, are one text of JSON.
_LIBRARY.define("composite(Tensor?[] inputs, str name, str attributes) -> Tensor")
_Outputs = torch.Tensor | tuple[torch.Tensor, ...]


def call(name: str, *inputs: torch.Tensor | None, **attributes: Any) -> torch.Tensor:
    """Call a composite with one output; in an exported program it is one node.

    Args:
        name: The composite.
        *inputs: Its inputs by position, None for absent ones.
        **attributes: Its attributes: numbers, strings and lists of them.

    Returns:
        The result of the composite's reference.
    """
    # Sorted, so that equal attributes are equal texts.
    text = json.dumps(attributes, sort_keys=True)
    result: torch.Tensor = torch.ops.coreai.composite(list(inputs), name, text)
    return result


def _by_name(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor | None], name: str, attributes: str
) -> _Outputs:
    from coreai_onnx.composites import COMPOSITES  # the package imports this file

    result: _Outputs = function(COMPOSITES[name], *inputs, **json.loads(attributes))
    return result


def _outputs(composite: Composite, *inputs: torch.Tensor | None, **attributes: Any) -> _Outputs:
    """Return what the reference returns, with the strides of `_empty_outputs`."""
    result = composite.reference(*inputs, **attributes)
    if isinstance(result, torch.Tensor):
        return result.contiguous()
    return tuple(x.contiguous() for x in result)


def _empty_outputs(
    composite: Composite, *inputs: torch.Tensor | None, **attributes: Any
) -> _Outputs:
    """Return empty outputs of the declared shapes, without arithmetic on sizes in between."""
    shapes = composite.output_shapes([None if x is None else x.shape for x in inputs])
    by_name = {declared.name: x for declared, x in zip(composite.inputs, inputs, strict=False)}
    first = inputs[0]
    assert first is not None
    outputs = []
    for index, shape in enumerate(shapes):
        if shape is None:
            return _outputs(composite, *inputs, **attributes)
        like = by_name.get(composite.output_likes[index]) if composite.output_likes else None
        outputs.append((first if like is None else like).new_empty(shape))
    return tuple(outputs) if len(outputs) > 1 else outputs[0]


# This dispatch key serves every device, and leaves gradients undefined.
torch.library.impl(_LIBRARY, "composite", "CompositeExplicitAutograd")(partial(_by_name, _outputs))
torch.library.register_fake("coreai::composite", partial(_by_name, _empty_outputs), lib=_LIBRARY)


def _register(
    composite: Composite,
    compute: Callable[..., _Outputs] | None = None,
    empty: Callable[..., torch.Tensor] | None = None,
) -> Any:
    """Register a composite as a torch op of its inputs, then its attributes, by position.

    Args:
        composite: The declaration; its attributes are integers.
        compute: Computes the outputs; the reference by default.
        empty: Returns the empty output, where the declaration does not have its shape.

    Returns:
        The op.
    """
    inputs = (
        f"Tensor? {x.name}=None" if x.optional else f"Tensor {x.name}" for x in composite.inputs
    )
    attributes = (f"SymInt {a.name}={a.default}" for a in composite.attributes)
    results = ", ".join("Tensor" for _ in composite.outputs)
    schema = f"({', '.join((*inputs, *attributes))}) -> ({results})"
    count, names = len(composite.inputs), [a.name for a in composite.attributes]

    def positional(function: Callable[..., _Outputs]) -> Callable[..., _Outputs]:
        # torch leaves out trailing arguments that are defaults.
        return lambda *values: function(
            *values[:count], **dict(zip(names, values[count:], strict=False))
        )

    run = partial(_outputs, composite) if compute is None else compute
    op = torch.library.custom_op(
        f"coreai::{composite.name}", positional(run), mutates_args=(), schema=schema
    )
    op.register_fake(positional(partial(_empty_outputs, composite) if empty is None else empty))
    return op


# ---------------------------------------------------------------------- gathered products
def _gather_mm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    lhs_indices: torch.Tensor | None = None,
    rhs_indices: torch.Tensor | None = None,
    *,
    num_batch_axes: int = 0,
    transpose_rhs: int = 0,
) -> torch.Tensor:
    axis, chosen = num_batch_axes, rhs_indices
    # Indices along an axis of the matrices themselves do not select matrices to share.
    if chosen is None or rhs.ndim - axis <= 2:
        return products.gather_mm(
            lhs, rhs, lhs_indices, chosen, num_batch_axes=axis, transpose_rhs=transpose_rhs
        )
    left = products.take(lhs, lhs_indices, axis)
    numbers = torch.arange(rhs.shape[:-2].numel()).view(rhs.shape[:-2])
    matrices = rhs.reshape(-1, *rhs.shape[-2:])
    return _by_matrix(
        left,
        products.take(numbers, chosen, axis),
        rhs.shape[-2 if transpose_rhs else -1],
        lambda rows, matrix: products.gather_mm(
            rows, matrices[matrix], transpose_rhs=transpose_rhs
        ),
    )


def _empty_gather_mm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    lhs_indices: torch.Tensor | None = None,
    rhs_indices: torch.Tensor | None = None,
    *,
    num_batch_axes: int = 0,
    transpose_rhs: int = 0,
) -> torch.Tensor:
    left = products.taken_shape(lhs, lhs_indices, num_batch_axes)
    right = products.taken_shape(rhs, rhs_indices, num_batch_axes)
    batch = torch.broadcast_shapes(left[:-2], right[:-2])
    return lhs.new_empty((*batch, left[-2], right[-2 if transpose_rhs else -1]))


def _gather_mm_nbits(
    lhs: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    indices: torch.Tensor,
    *optional: torch.Tensor | None,
    **attributes: Any,
) -> torch.Tensor:
    parts = dict(zip(NAMES, (codes, scales, *optional), strict=False))

    def multiply(rows: torch.Tensor, matrix: int) -> torch.Tensor:
        parts_of_matrix: dict[str, Any] = {
            name: part[matrix] if name in BY_ROW and part is not None else part
            for name, part in parts.items()
        }
        return few_bits.linear_nbits(rows, **parts_of_matrix, **attributes)

    return _by_matrix(lhs, indices, codes.shape[1], multiply)


def _empty_gather_mm_nbits(
    lhs: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    indices: torch.Tensor,
    *others: torch.Tensor | None,
    **attributes: int,
) -> torch.Tensor:
    del scales, others, attributes
    batch = torch.broadcast_shapes(lhs.shape[:-2], indices.shape)
    return lhs.new_empty((*batch, lhs.shape[-2], codes.shape[1]))


def _by_matrix(
    lhs: torch.Tensor,
    chosen: torch.Tensor,
    columns: int,
    multiply: Callable[[torch.Tensor, int], torch.Tensor],
) -> torch.Tensor:
    """Multiply all rows that share a matrix at once, so that no matrix is copied per row.

    Args:
        lhs: ``[..., M, K]``.
        chosen: The number of the matrix for each index of the batch axes.
        columns: The number of columns of a product.
        multiply: Returns the product of rows ``[n, M, K]`` and a matrix, ``[n, M, columns]``.
    """
    left = torch.arange(lhs.shape[:-2].numel()).view(lhs.shape[:-2])
    batch = torch.broadcast_shapes(left.shape, chosen.shape)
    left, right = left.expand(batch).reshape(-1), chosen.expand(batch).reshape(-1)
    rows = lhs.reshape(-1, *lhs.shape[-2:])
    result = lhs.new_empty(right.numel(), lhs.shape[-2], columns)
    for matrix in right.unique().tolist():
        # Each matrix is read once, whatever the order of the rows.
        here = right == matrix
        result[here] = multiply(rows[left[here]], matrix)
    return result.reshape(*batch, *result.shape[1:])


gather_mm = _register(products.GATHER_MM, _gather_mm, _empty_gather_mm)
gather_mm_nbits = _register(few_bits.GATHER_MM_NBITS, _gather_mm_nbits, _empty_gather_mm_nbits)
gated_delta_update = _register(gated_delta.GATED_DELTA_UPDATE)


# ---------------------------------------------------------------------------- collectives
def _with_zeros(composite: Composite, parts: torch.Tensor, **attributes: int) -> _Outputs:
    """Compute a collective; in the module of one rank, as if the parts of the others were zeros.

    Such a module runs for the shapes of its results only, before it is exported.
    """
    ranks = attributes.get("ranks", 2)
    if len(parts) == ranks:
        return _outputs(composite, parts, **attributes)
    padding = parts.new_zeros((ranks - 1, *parts.shape[1:]))
    result = composite.reference(torch.cat([parts, padding]), ranks=ranks)
    return result[:1].clone()  # type: ignore[no-any-return]


def _empty_all_gather(parts: torch.Tensor, *, ranks: int = 2, rank: int = 0) -> torch.Tensor:
    del rank
    return parts.new_empty(products.gathered_shape(parts, ranks))


all_reduce = _register(products.ALL_REDUCE, partial(_with_zeros, products.ALL_REDUCE))
all_gather = _register(
    products.ALL_GATHER, partial(_with_zeros, products.ALL_GATHER), _empty_all_gather
)
