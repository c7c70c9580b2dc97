"""Separates 16-bit transposes from the matrix products on the other side of a function's border."""

from __future__ import annotations

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.bodies import Bodies, model_bodies
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import dtype_of, is_standard, rank_of, shape_of
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.passes.layout.transposes_after_products import moves_first_axis

_HALF = np.dtype(np.float16)


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
    given = zip(call.inputs, function.inputs, strict=False)
    return any(_multiplied(bodies, inner, cast=cast) for outer, inner in given if outer is operand)


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
    wide = edit.node("Unsqueeze", node, [source, first]).outputs[0]
    turned = edit.node("Transpose", node, [wide], perm=perm).outputs[0]
    for tensor, plain in ((wide, source), (turned, result)):
        shape = shape_of(plain)
        tensor.dtype, tensor.shape = plain.dtype, None if shape is None else [1, *shape]
    edit.become(node, "Squeeze", [turned, first])
