"""Moves or separates transposes around 16-bit matrix products, with which onnxruntime crashes."""

from __future__ import annotations

from typing import Any

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, model_bodies
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import (
    attribute_of,
    dtype_of,
    is_standard,
    made_by,
    rank_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

_HALF = np.dtype(np.float16)


@rewrites("MatMul")
def transposes_after_products(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Product of a transposed 16-bit tensor and a matrix → transposed product.

    x:f16[s, b, 8] ─Transpose([1, 0, 2])→ ─MatMul(w:[8, 4])→ y
    becomes     x ─MatMul(w)→ ─Transpose([1, 0, 2])→ y

    onnxruntime crashes when it loads a model with the former (seen in 1.21 to 1.31): it inserts a
    Cast to float32 between the two, if the model has none, and its MatmulTransposeFusion exchanges
    Cast and Transpose without reconnecting them if the operands have different ranks. If the
    product cannot come first, the operand of lower rank gets leading dims of 1 instead.
    """
    for index in (0, 1):
        transpose = _converted_transpose(node.inputs[index])
        if transpose is None:
            continue
        ranks = [rank_of(tensor) for tensor in node.inputs]
        if None in ranks:
            why("the rank of an operand is not known", node)
        elif ranks[0] != ranks[1]:
            if _rewrite(edit, node, transpose, index):
                return True
            why("an operand is a row, and the product cannot come first", node)
    return False


def _converted_transpose(operand: gs.Tensor) -> gs.Node | None:
    """Return the Transpose that onnxruntime would move after the Cast of its result."""
    cast = made_by(operand, "Cast")
    if cast is None and dtype_of(operand) != _HALF:
        return None
    transpose = made_by(operand if cast is None else cast.inputs[0], "Transpose")
    perm = None if transpose is None else attribute_of(transpose, "perm", None)
    return transpose if moves_first_axis(perm) else None


def moves_first_axis(perm: Any) -> bool:
    """Whether a permutation puts the first axis into the last matrix, the others in order."""
    if not isinstance(perm, list) or len(perm) < 3:
        return False
    last = len(perm) - 1
    # FusedMatMul can express these (transBatchA, transBatchB), so MatmulTransposeFusion looks for
    # them.
    return perm[:-2] == list(range(1, last)) and sorted(perm[-2:]) == [0, last]


def _rewrite(edit: Edit, node: gs.Node, transpose: gs.Node, index: int) -> bool:
    perm, shapes = list(transpose.attrs["perm"]), [list(tensor.shape) for tensor in node.inputs]
    ranks = [len(shape) for shape in shapes]
    # The axis that is multiplied stays last, and a matrix has no batch axes to permute.
    if index == 0 and perm[-1] == len(perm) - 1 and ranks[1] <= 2:
        _commute(edit, node, transpose, perm if ranks[1] == 2 else perm[:-1])
        return True
    if min(ranks) < 2:
        return False
    # Equal ranks avoid the defect; MatMul broadcasts leading dims of 1.
    lower, missing = int(ranks[0] > ranks[1]), abs(ranks[0] - ranks[1])
    axes = edit.constant("axes", np.arange(missing, dtype=np.int64))
    operand, shape = node.inputs[lower], [1] * missing + shapes[lower]
    wide = edit.add("Unsqueeze", node, [operand, axes], operand.dtype, shape)
    set_input(node, lower, wide)
    return True


def _commute(edit: Edit, node: gs.Node, transpose: gs.Node, perm: list[int]) -> None:
    operand, source, result = node.inputs[0], transpose.inputs[0], node.outputs[0]
    cast = made_by(operand, "Cast")
    if cast is not None:
        dtype, shape = operand.dtype, shape_of(source)
        source = edit.add("Cast", node, [source], dtype, shape, **cast.attrs)
    shape = shape_of(result)
    order = None if shape is None else [shape[perm.index(axis)] for axis in range(len(perm))]
    product = edit.add("MatMul", node, [source, node.inputs[1]], result.dtype, order)
    edit.become(node, "Transpose", [product], perm=perm)


@rewrites("Transpose")
def separate_transposes(edit: Edit, node: gs.Node, _why: Why) -> bool:
    """16-bit Transpose on one side of a function's border, product on the other → with a Squeeze.

    x:f16[s, b, 8] ─Transpose([1, 0, 2])→ ─F→ y     where F(t) has MatMul(t, w:[8, 4])
    becomes     x ─Unsqueeze(0)→ ─Transpose([0, 2, 1, 3])→ ─Squeeze(0)→ ─F→ y

    onnxruntime puts the body in the place of the call, and then crashes as for
    ``transposes_after_products``, which cannot exchange nodes of two graphs. It does not exchange a
    Squeeze with a Cast; Unsqueeze and Squeeze copy nothing.
    """
    bodies = model_bodies(edit.graph)
    if bodies is None or not moves_first_axis(node.attrs.get("perm")):
        return False
    result = node.outputs[0]
    if not _meets_a_product(edit, bodies, result, cast=dtype_of(result) == _HALF):
        return False
    _separate(edit, node)
    return True


def _meets_a_product(edit: Edit, bodies: Bodies, result: gs.Tensor, *, cast: bool) -> bool:
    """Whether a product of another function or of a caller may read a tensor through a Cast.

    Args:
        edit: Knows the outputs of the graph.
        bodies: The functions of the model.
        result: The tensor.
        cast: Whether onnxruntime inserts a Cast after it, or there is one before it.
    """
    # Any caller may multiply an output of a function; callers are not searched.
    if cast and isinstance(edit.graph, gs.Function) and edit.is_output(result):
        return True
    for reader in result.outputs:
        if is_standard(reader, "Cast"):
            if _meets_a_product(edit, bodies, reader.outputs[0], cast=True):
                return True
        elif _multiplied_in_call(bodies, reader, result, cast=cast):
            return True
    return False


def _multiplied_in_call(bodies: Bodies, call: gs.Node, operand: gs.Tensor, *, cast: bool) -> bool:
    function = bodies.function(call)
    if function is None:
        return False
    pairs = zip(call.inputs, function.inputs, strict=False)
    return any(_multiplied(bodies, inner, cast=cast) for outer, inner in pairs if outer is operand)


def _multiplied(bodies: Bodies, tensor: gs.Tensor, *, cast: bool) -> bool:
    """Whether a product of operands of different or unknown ranks reads a tensor in a function."""
    for reader in tensor.outputs:
        if is_standard(reader, "Cast"):
            if _multiplied(bodies, reader.outputs[0], cast=True):
                return True
        elif is_standard(reader, "MatMul"):
            ranks = {rank_of(operand) for operand in reader.inputs}
            # Operands of equal rank do not trigger the defect.
            if cast and (None in ranks or len(ranks) > 1):
                return True
        elif _multiplied_in_call(bodies, reader, tensor, cast=cast):
            return True
    return False


def _separate(edit: Edit, node: gs.Node) -> None:
    """Replace a Transpose with one of a rank more, and a Squeeze of its result."""
    source, result = node.inputs[0], node.outputs[0]
    perm = [0, *(axis + 1 for axis in node.attrs["perm"])]
    first = edit.constant("first_axis", np.zeros(1, dtype=np.int64))
    before, after = ((1, *(shape_of(t) or ())) if shape_of(t) else None for t in (source, result))
    wide = edit.add("Unsqueeze", node, [source, first], source.dtype, before)
    turned = edit.add("Transpose", node, [wide], result.dtype, after, perm=perm)
    edit.become(node, "Squeeze", [turned, first])
