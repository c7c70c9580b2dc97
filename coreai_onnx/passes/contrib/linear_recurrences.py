"""Replaces scans whose state changes linearly with onnxruntime's LinearAttention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    Dim,
    constant_of,
    dtype_of,
    is_standard,
    maker,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.layout.parallel_scans import ParallelScan

_FLOAT = np.dtype(np.float32)
_VIEWS = ("Expand", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
_OF_ZERO = -87.0
"""A logarithm for 0: that of the smallest normal number, since shaders need not have infinities."""


@rewrites("Scan")
def contrib_linear_recurrences(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Scan of S ← a * S + b, where a ≥ 0 → LinearAttention with keys and queries of one.

    Scan(S, a, b) {S ← a * S + b; y = f(S)}
    becomes     f(LinearAttention(1, 1, b, S, log(a)))

    What a step computes beside the state is computed for all steps at once. The logarithm is that
    of the graph, where `a` is an exponential, so that nothing is rounded.
    """
    scan = ParallelScan(edit, node)
    added = scan.updated("Add")
    if added is None:
        return False
    scaled = maker(added[0].inputs[added[1]])
    if scaled is None or not is_standard(scaled, "Mul") or scan.state not in list(scaled.inputs):
        return False
    rate = next((one for one in scaled.inputs if one is not scan.state), scan.state)
    if scan.reads_state(rate):
        return False
    if scan.fault:
        return why(scan.fault, node)
    if not _has_logarithm(rate, scan):
        return why("the factor of the state may be negative", node)
    decay = _logarithm(edit, node, scan.lifted(rate))
    _replace(edit, scan, decay, scan.lifted(added[0].inputs[1 - added[1]]))
    return True


def _replace(edit: Edit, scan: ParallelScan, decay: gs.Tensor, added: gs.Tensor) -> None:
    dims, node = scan.dims, scan.node
    # The axes that share a decay are the values of a head; all others are heads.
    shape: list[Dim] = list(sizes) if (sizes := shape_of(decay)) is not None else [*scan.shape]
    shape[:0] = [1] * (len(scan.shape) - len(shape))
    shared = 0
    while shared < len(dims) and shape[-1 - shared] == 1:
        shared += 1
    outer = dims[: len(dims) - shared]
    heads = math.prod(outer)
    width = math.prod(dims) // heads
    rates = _rows(scan, decay, [*outer, *[1] * shared], heads)
    values = _rows(scan, added, dims, heads * width)
    one = edit.constant("one", np.ones((1, 1, 1), np.float32))
    ones = scan.add("Expand", [one, scan.sizes("batch", "steps", 1)], [*scan.shape[1::-1], 1])
    state_rows = [scan.shape[1], heads, 1, width]
    first = scan.add("Reshape", [node.inputs[0], scan.ints(0, heads, 1, width)], state_rows)
    attention = edit.node(
        "LinearAttention",
        node,
        [ones, ones, values, first, rates],
        outputs=[
            gs.Variable(f"{node.name}_rows", _FLOAT, [*scan.shape[1::-1], heads * width]),
            gs.Variable(f"{node.name}_last", _FLOAT, state_rows),
        ],
        domain=CONTRIB_DOMAIN,
        q_num_heads=1,
        kv_num_heads=heads,
        update_rule="gated",
        scale=1.0,
    )
    rows, last = attention.outputs
    by_batch = [*scan.shape[1::-1], *dims]
    after = scan.add("Reshape", [rows, scan.ints(0, 0, *dims)], by_batch)
    after = scan.add("Transpose", [after], scan.shape, perm=_swapped(dims))
    last = scan.add("Reshape", [last, scan.ints(0, *dims)], scan.shape[1:])
    scan.finish(after, last)


def _rows(scan: ParallelScan, tensor: gs.Tensor, dims: list[int], count: int) -> gs.Tensor:
    """Return a tensor of all steps as ``[batch, steps, count]``."""
    lead = scan.shape[:2]
    whole = scan.add("Expand", [tensor, scan.sizes("steps", "batch", *dims)], [*lead, *dims])
    turned = scan.add("Transpose", [whole], [*lead[::-1], *dims], perm=_swapped(dims))
    return scan.add("Reshape", [turned, scan.ints(0, 0, count)], [*lead[::-1], count])


def _swapped(dims: list[int]) -> list[int]:
    return [1, 0, *range(2, 2 + len(dims))]


def _has_logarithm(tensor: gs.Tensor, scan: ParallelScan) -> bool:
    """Return whether `_logarithm` finds the logarithm of a tensor of the body."""
    tensor = scan.source(tensor)
    values = constant_of(tensor)
    if values is not None:
        return bool((values >= 0).all())
    node = maker(tensor)
    if node is None:
        return False
    if is_standard(node, "Mul"):
        return all(_has_logarithm(one, scan) for one in node.inputs)
    if is_standard(node, *_VIEWS):
        return _has_logarithm(node.inputs[0], scan)
    return is_standard(node, "Exp") or _is_flag(node)


def _is_flag(node: gs.Node) -> bool:
    """Return whether a node makes 0 and 1 of booleans."""
    return is_standard(node, "Cast") and dtype_of(node.inputs[0]) == np.dtype(bool)


def _logarithm(edit: Edit, like: gs.Node, tensor: gs.Tensor) -> gs.Tensor:
    """Return the logarithm of a tensor, without computing one."""

    def add(op: str, inputs: list[gs.Tensor], **attrs: Any) -> gs.Tensor:
        return edit.add(op, like, inputs, _FLOAT, shape_of(tensor), **attrs)

    values, node = constant_of(tensor), maker(tensor)
    if values is not None:
        small = np.exp(np.array(_OF_ZERO, values.dtype))
        return edit.constant("decay", np.log(np.maximum(values, small)))
    assert node is not None
    if is_standard(node, "Exp"):
        return node.inputs[0]
    if is_standard(node, "Mul"):
        return add("Add", [_logarithm(edit, like, one) for one in node.inputs])
    if is_standard(node, *_VIEWS):
        inner = _logarithm(edit, like, node.inputs[0])
        return add(node.op, [inner, *node.inputs[1:]], **node.attrs)
    one, scale = (edit.constant("flag", np.array(x, np.float32)) for x in (1, -_OF_ZERO))
    return add("Mul", [add("Sub", [tensor, one]), scale])
