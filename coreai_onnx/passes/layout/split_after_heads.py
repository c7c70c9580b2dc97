"""Moves the Split of queries, keys and values after the layout change to heads."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.analysis.attention_bodies import PERM
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import attribute_of, is_standard, rank_of, shape_of
from coreai_onnx.passes.engine.why import Why


@rewrites("Split")
def split_after_heads(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Split, then Reshape and Transpose of each part → Reshape, Transpose, then Split.

    x ─Split→ q, k, v; each ─Reshape([0, 0, h, d])→ ─Transpose([0, 2, 1, 3])→
    becomes     x ─Reshape([0, 0, 3h, d])→ ─Transpose([0, 2, 1, 3])→ ─Split(axis=1)→
    """
    if rank_of(node.inputs[0]) != 3 or attribute_of(node, "axis", 0) not in (-1, 2):
        return False
    parts = [_laid_out(edit, tensor) for tensor in node.outputs]
    if all(part is None for part in parts):
        return False
    # One Split by heads needs parts of one head size.
    halves = [part for part in parts if part is not None]
    if len(halves) < len(parts) or len({part[1] for part in halves}) > 1:
        return why("all parts must be split into heads of the same size", node)
    _move(edit, node, halves)
    return True


_Part = tuple[int, int, gs.Node, gs.Node]


def _laid_out(edit: Edit, tensor: gs.Tensor) -> _Part | None:
    """Return the number of heads, their size, the Reshape and the Transpose of one part."""
    reshape = _only_reader(edit, tensor, "Reshape")
    transpose = None if reshape is None else _only_reader(edit, reshape.outputs[0], "Transpose")
    if reshape is None or transpose is None:
        return None
    before, after = shape_of(tensor), shape_of(reshape.outputs[0])
    if before is None or after is None or len(after) != 4 or None in before:
        return None
    heads, size = after[2:]
    if after[:2] != before[:2] or not isinstance(heads, int) or not isinstance(size, int):
        return None
    if attribute_of(transpose, "perm", None) != PERM or before[2] != heads * size:
        return None
    return heads, size, reshape, transpose


def _only_reader(edit: Edit, tensor: gs.Tensor, op: str) -> gs.Node | None:
    reader = edit.only_reader(tensor)
    return reader if reader is not None and is_standard(reader, op) else None


def _move(edit: Edit, split: gs.Node, parts: list[_Part]) -> None:
    heads, size = [part[0] for part in parts], parts[0][1]
    source, results = split.inputs[0], [part[3].outputs[0] for part in parts]
    shape = shape_of(source)
    assert shape is not None  # its rank is 3
    name = split.outputs[0].name
    target = edit.constant(f"{name}_heads", np.array([0, 0, sum(heads), size], np.int64))
    dtype, wide = source.dtype, [*shape[:2], sum(heads), size]
    rows = edit.add("Reshape", split, [source, target], dtype, wide)
    turned = [wide[axis] for axis in PERM]
    columns = edit.add("Transpose", split, [rows], dtype, turned, perm=PERM)
    sizes = edit.constant(f"{name}_head_counts", np.array(heads, np.int64))
    edit.node("Split", split, [columns, sizes], outputs=results, axis=1)
    edit.remove(split)
    for _, _, old_reshape, old_transpose in parts:
        edit.remove(old_reshape)
        edit.remove(old_transpose)
