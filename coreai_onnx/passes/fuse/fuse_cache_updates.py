"""Fuses the update of a cache at consecutive positions."""

from __future__ import annotations

import numpy as np

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes.analysis.affine import AffineExpr, AffineTensor
from coreai_onnx.passes.analysis.affine_analysis import AffineAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, makes_functions
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    attribute_of,
    axes_of,
    dtype_of,
    is_standard,
    made_by,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

NAME = "kv_cache_update"
# From [b, h, s, d] to [s, b, h, d], since ScatterND indexes leading axes, and back.
_AHEAD, _BACK = [2, 0, 1, 3], [1, 2, 0, 3]


@makes_functions
@rewrites("ScatterND")
def fuse_cache_updates(edit: Edit, node: gs.Node, why: Why, bodies: Bodies) -> bool:
    """Tokens scattered to positions of a transposed cache → one ai.coreai::kv_cache_update.

    Transpose(cache:[b, h, s, d]) → c:[s, b, h, d], ScatterND(c, p + [0, 1, …], u) ─Transpose→ y
    becomes     kv_cache_update(cache, update, p) → y

    ``index_copy`` and the static cache of transformers produce this pattern. The body does not
    transpose the cache, and our kernel writes into it in place.
    """
    positions = edit.once(AffineAnalysis)
    cache, after = _cache(node), _after(node, edit)
    if cache is None or after is None:
        return False
    position = _position(node.inputs[1], positions, edit)
    if position is None:
        return why("the positions may not be consecutive", node)
    op_type = bodies.provide_composite(NAME, dtype_of(cache))
    if op_type is None:
        return why("the model's kv_cache_update has another body", node)
    rows, shape = node.inputs[2], shape_of(node.inputs[2])
    turned = None if shape is None else [shape[axis] for axis in _BACK]
    update = edit.add("Transpose", node, [rows], rows.dtype, turned, perm=_BACK)
    edit.remove(node)
    edit.become(after, op_type, [cache, update, position], domain=STANDARD_DOMAIN, version=1)
    return True


def _cache(scatter: gs.Node) -> gs.Tensor | None:
    """Return the cache before the transpose that moves its positions to the front."""
    # With a reduction, tokens would be added to the cache instead of replacing its rows.
    if attribute_of(scatter, "reduction", "none") != "none":
        return None
    ahead = made_by(scatter.inputs[0], "Transpose")
    if ahead is None or list(attribute_of(ahead, "perm", [])) != _AHEAD:
        return None
    return ahead.inputs[0]


def _after(scatter: gs.Node, edit: Edit) -> gs.Node | None:
    """Return the transpose that moves the positions back, if it is the only reader."""
    after = edit.only_reader(scatter.outputs[0])
    if after is None or not is_standard(after, "Transpose"):
        return None
    return after if list(attribute_of(after, "perm", [])) == _BACK else None


def _position(indices: gs.Tensor, positions: AffineAnalysis, edit: Edit) -> gs.Tensor | None:
    """Return the position of the first token, if the positions are consecutive."""
    unsqueeze, shape = made_by(indices, "Unsqueeze"), shape_of(indices)
    if unsqueeze is None or shape is None or axes_of(unsqueeze) not in ([-1], [1]):
        return None
    places = unsqueeze.inputs[0]
    if len(shape) != 2 or dtype_of(places) is None:
        return None
    add = made_by(places, "Add")
    for steps, start in (add.inputs, add.inputs[::-1]) if add is not None else ():
        # A first position that is an input of the model is unknown to the analysis, but added to a
        # range.
        is_range = _counts_from(steps, positions) == AffineExpr(0)
        if is_range and shape_of(start) in ((), (1,)):
            return start
    # A single token is at consecutive positions wherever it is.
    if shape[0] == 1:
        return places
    first = _counts_from(places, positions)
    if first is None or first.int_value is None:
        return None
    return edit.constant(f"{indices.name}_first", np.array([first.int_value], np.int64))


def _counts_from(tensor: gs.Tensor, positions: AffineAnalysis) -> AffineExpr | None:
    """Return the first of consecutive positions; None if they are not consecutive."""
    affine = positions.of(tensor)
    if not isinstance(affine, AffineTensor) or len(affine.dims) != 1:
        return None
    single = affine.dims[0] == AffineExpr(1)
    return affine.start if affine.steps == (1,) or single else None
