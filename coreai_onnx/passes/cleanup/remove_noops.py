"""Removes nodes that return their input: casts, transposes, expands, reshapes, slices, x + 0."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes.analysis.shape_values import ShapeValue, ShapeValueAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    constant_of,
    dtype_of,
    input_of,
    ints_of,
    made_by,
    may_train,
    rank_of,
    same_known_shape,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why


@rewrites("Cast", "CastLike")
def remove_noop_casts(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Cast or CastLike to the same dtype → nothing.

    x:f32 ─Cast(to=f32)→ y ─Relu→ z     becomes     x:f32 ─Relu→ z
    """
    source, target = dtype_of(node.inputs[0]), _target(node)
    if source is None or target is None:
        return why("a dtype is not known", node)
    return source == target and edit.bypass_or(why, node, node.inputs[0])


def _target(node: gs.Node) -> np.dtype | None:
    if node.op == "CastLike":
        return dtype_of(node.inputs[1])
    to = attribute_of(node, "to", None)
    return ir.DataType(to).numpy() if isinstance(to, int) else None


@rewrites("Transpose")
def remove_noop_transposes(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Transpose with the identity permutation → nothing.

    x ─Transpose(perm=[0, 1, 2])→ y ─Relu→ z     becomes     x ─Relu→ z
    """
    return _keeps_order(node, why) and edit.bypass_or(why, node, node.inputs[0])


def _keeps_order(node: gs.Node, why: Why) -> bool:
    perm = attribute_of(node, "perm", None)
    if perm is None:  # the default reverses the axes
        shape = shape_of(node.inputs[0])
        if shape is None:
            return why("without perm, the rank must be known", node)
        return len(shape) < 2
    if not isinstance(perm, list):
        return why("perm refers to an attribute of the function", node)
    return perm == list(range(len(perm)))


@rewrites("Expand", "Tile")
def remove_noop_expands(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Expand to the shape that the tensor already has, Tile with repeats of 1 → nothing.

    x:[batch, 8] ─Expand([1, 8])→ y ─Relu→ z     becomes     x:[batch, 8] ─Relu→ z
    """
    is_noop = _repeats_nothing(node, edit.once(ShapeValueAnalysis), why)
    return is_noop and edit.bypass_or(why, node, node.inputs[0])


def _repeats_nothing(node: gs.Node, analysis: ShapeValueAnalysis, why: Why) -> bool:
    if same_known_shape(node.inputs[0], node.outputs[0]):
        return True
    target = analysis.of(node.inputs[1])
    if target is None:
        return why("the target shape is not known", node)
    if node.op == "Expand":
        return _fills(node.inputs[0], target)
    return all(repeats == 1 for repeats in target.items)


def _fills(tensor: gs.Tensor, target: ShapeValue) -> bool:
    """Whether each target dim is 1 or equals the tensor's dim, aligned at the end."""
    shape = _shape_before_casts(tensor)
    if shape is None or len(target.items) > len(shape):
        return False
    # Expand broadcasts, so a target dim of 1 keeps the dim of the tensor, whatever it is.
    tail = shape[len(shape) - len(target.items) :]
    return all(
        want == 1 or (want == dim and dim is not None)
        for want, dim in zip(target.items, tail, strict=True)
    )


def _shape_before_casts(tensor: gs.Tensor) -> tuple[Dim, ...] | None:
    """Return the shape of a tensor; function bodies declare those of arguments only."""
    cast = made_by(tensor, "Cast")
    while shape_of(tensor) is None and cast is not None:
        tensor = cast.inputs[0]
        cast = made_by(tensor, "Cast")
    return shape_of(tensor)


@rewrites("Reshape", "Flatten", "Squeeze")
def remove_noop_reshapes(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Reshape, Flatten, Squeeze to the same shape → nothing; equal names mean equal dims.

    x:[batch, 8] ─Reshape([0, 8])→ y ─Relu→ z     becomes     x:[batch, 8] ─Relu→ z
    """
    is_noop = _keeps_shape(node, edit.once(ShapeValueAnalysis), why)
    return is_noop and edit.bypass_or(why, node, node.inputs[0])


def _keeps_shape(node: gs.Node, analysis: ShapeValueAnalysis, why: Why) -> bool:
    shape = shape_of(node.inputs[0])
    if shape is None:
        return why("the shape of the input is not known", node)
    if same_known_shape(node.inputs[0], node.outputs[0]):
        return True
    return node.op == "Reshape" and _keeps(node, shape, analysis)


def _keeps(node: gs.Node, shape: tuple[Dim, ...], analysis: ShapeValueAnalysis) -> bool:
    """Whether each dim is copied or equal, except that one may be inferred."""
    target = analysis.of(node.inputs[1])
    if target is None or len(target.items) != len(shape):
        return False
    copies = attribute_of(node, "allowzero", 0) == 0
    inferred = 0
    for dim, size in zip(shape, target.items, strict=True):
        if size is None:
            return False
        if size == -1:
            inferred += 1
        elif not (size == dim or (size == 0 and copies)):
            return False
    # If all other dims are kept, the inferred one can only be what it was.
    return inferred <= 1


_OPEN_END = 2**31 - 1
"""Exporters write an end of INT32_MAX or INT64_MAX for "to the end"."""


@rewrites("Slice")
def remove_noop_slices(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Slice from 0 to the end with step 1 on all its axes → nothing.

    x ─Slice(starts=[0], ends=[INT64_MAX])→ y ─Relu→ z     becomes     x ─Relu→ z
    """
    return _keeps_all(node, why) and edit.bypass_or(why, node, node.inputs[0])


def _keeps_all(node: gs.Node, why: Why) -> bool:
    starts_input, ends_input = input_of(node, 1), input_of(node, 2)
    if starts_input is None or ends_input is None:
        return why("starts and ends are attributes, as before opset 10", node)
    starts, ends = ints_of(starts_input), ints_of(ends_input)
    if starts is None or ends is None:
        return why("starts or ends are computed", node)
    axes_input, steps_input = input_of(node, 3), input_of(node, 4)
    axes = list(range(len(starts))) if axes_input is None else ints_of(axes_input)
    steps = [1] * len(starts) if steps_input is None else ints_of(steps_input)
    if axes is None or steps is None:
        return why("axes or steps are computed", node)
    if any(step != 1 for step in steps):
        return False
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return why("starts, ends, axes and steps must have the same length", node)
    shape = shape_of(node.inputs[0])
    for start, end, axis in zip(starts, ends, axes, strict=True):
        dim: Dim = None
        if shape is not None and -len(shape) <= axis < len(shape):
            dim = shape[axis]
        starts_first = start == 0 or (isinstance(dim, int) and start <= -dim)
        ends_last = end >= (dim if isinstance(dim, int) else _OPEN_END)
        if not (starts_first and ends_last):
            return False
    return True


@rewrites("Identity", "Dropout")
def remove_identities(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Identity, and Dropout in inference mode → nothing.

    a ─Identity→ b ─Relu→ c     becomes     a ─Relu→ c
    """
    if node.op == "Identity" or _is_inference(node):
        return edit.bypass_or(why, node, node.inputs[0])
    return why("Dropout may be in training mode, or its mask is used", node)


def _is_inference(node: gs.Node) -> bool:
    # Another output is the mask.
    return len(node.outputs) == 1 and not may_train(node)


_COMMUTATIVE = ("Add", "Mul", "And", "Or")


@rewrites(*_COMMUTATIVE, "Sub", "Div")
def remove_neutral_operands(edit: Edit, node: gs.Node, why: Why) -> bool:
    """x + 0 and x - 0 of integers, x * 1, x / 1, And(x, True), Or(x, False) → x.

    x ─Mul(1.0)→ y ─Relu→ z     becomes     x ─Relu→ z

    A float plus 0 is not removed: -0 + 0 is 0.
    """
    kept = _kept(node)
    return kept is not None and edit.bypass_or(why, node, kept)


def _kept(node: gs.Node) -> gs.Tensor | None:
    """Return the operand that equals the result; None if neither does."""
    if len(node.inputs) != 2:
        return None
    sides = [(0, 1), (1, 0)] if node.op in _COMMUTATIVE else [(0, 1)]
    for index, other in sides:
        tensor, constant = node.inputs[index], constant_of(node.inputs[other], at_most=1)
        if constant is None or constant.size != 1 or not _is_neutral(node, constant):
            continue
        rank = rank_of(tensor)
        # A constant of a higher rank adds axes to the result.
        if constant.ndim == 0 or (rank is not None and rank >= constant.ndim):
            return tensor
    return None


def _is_neutral(node: gs.Node, constant: np.ndarray) -> bool:
    if node.op in ("And", "Or"):
        return bool(constant.reshape(())) is (node.op == "And")
    if constant.dtype.kind == "O":
        return False
    # x * 1 and x / 1 are exact in every dtype, for NaN and -0 too.
    if node.op in ("Mul", "Div"):
        return bool(np.all(constant == 1))
    dtype = dtype_of(node.inputs[0]) or constant.dtype
    return dtype.kind in "iu" and not constant.any()
