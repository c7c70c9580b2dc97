"""Lowers the torch ops of this package that are composites."""

from __future__ import annotations

import json
from collections.abc import Sequence

from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.values import Value
from coreai_onnx.lower.walk.registry import lowers


@lowers("coreai.gather_mm.default")
def gather_mm(
    op: OpBuilder,
    lhs: Value,
    rhs: Value,
    lhs_indices: Value | None = None,
    rhs_indices: Value | None = None,
    num_batch_axes: int = 0,
    transpose_rhs: bool = False,
) -> Value:
    """The composite ``gather_mm``."""
    return op.composite(
        "gather_mm",
        [lhs, rhs, lhs_indices, rhs_indices],
        num_batch_axes=num_batch_axes,
        transpose_rhs=int(transpose_rhs),
    )


@lowers("coreai.gather_mm_nbits.default")
def gather_mm_nbits(
    op: OpBuilder,
    lhs: Value,
    codes: Value,
    scales: Value,
    indices: Value,
    zero_points: Value | None = None,
    palette: Value | None = None,
    bits: int = 4,
    group_size: int = 32,
    activation_bits: int = 0,
) -> Value:
    """The composite ``gather_mm_nbits``."""
    return op.composite(
        "gather_mm_nbits",
        [lhs, codes, scales, indices, zero_points, palette],
        bits=bits,
        group_size=group_size,
        activation_bits=activation_bits,
    )


@lowers("coreai.gated_delta_update.default")
def gated_delta_update(
    op: OpBuilder,
    query: Value,
    key: Value,
    value: Value,
    g: Value,
    beta: Value,
    initial_state: Value | None = None,
    use_qk_l2_norm: bool = True,
) -> list[Value]:
    """The composite ``gated_delta_update``."""
    return op.composite_outputs(
        "gated_delta_update",
        [query, key, value, g, beta, initial_state],
        use_qk_l2_norm=int(use_qk_l2_norm),
    )


@lowers("coreai.composite.default")
def composite(op: OpBuilder, inputs: Sequence[Value | None], name: str, attributes: str) -> Value:
    """Any composite with one output and attributes in JSON."""
    return op.composite(name, list(inputs), **json.loads(attributes))
