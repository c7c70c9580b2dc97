"""Merges two nodes in a row: casts, reshapes, transposes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes.analysis.shape_values import ShapeValueAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import (
    Dim,
    attribute_of,
    axes_of,
    cast_to,
    dtype_of,
    made_by,
    rank_of,
    scalar_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

_BITS = {"float16": (11, 5), "bfloat16": (8, 8), "float32": (24, 8), "float64": (53, 11)}
"""Bits of significand and exponent."""


@rewrites("Cast")
def merge_casts(_: Edit, node: gs.Node, why: Why) -> bool:
    """Cast of a Cast that loses nothing → Cast of its input.

    x:f16 ─Cast→ f32 ─Cast→ bf16     becomes     x:f16 ─Cast→ bf16
    """
    inner = made_by(node.inputs[0], "Cast")
    between, last = cast_to(inner), cast_to(node)
    if inner is None or between is None or last is None:
        return False
    source = dtype_of(inner.inputs[0])
    if source is None:
        return why("a dtype is not known", node)
    if not _keeps_values(source, ir.DataType(between).numpy(), ir.DataType(last).numpy()):
        return why("the dtype between the casts may lose something", node)
    set_input(node, 0, inner.inputs[0])
    return True


def _keeps_values(source: np.dtype, between: np.dtype, last: np.dtype) -> bool:
    """Whether a direct cast from ``source`` to ``last`` gives the same values."""
    if source == between:
        return True
    if source == np.bool_:
        return between.kind in "iu" or between.name in _BITS
    if source.kind in "iu":
        if between.kind in "iu":
            # A narrower integer in between would wrap around, which a direct cast does not do.
            return bool(np.can_cast(source, between)) and last.name in {*_BITS, source.name}
        # onnxruntime converts integers to narrow floats through float32, rounding twice
        exact = between.name in _BITS and _BITS[between.name][0] >= 8 * source.itemsize
        return exact and last.name not in ("float16", "bfloat16", "bool")
    if source.name not in _BITS or between.name not in _BITS:
        return False
    return all(a <= b for a, b in zip(_BITS[source.name], _BITS[between.name], strict=True))


_OPS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@rewrites(*_OPS)
def merge_reshapes(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Two consecutive Reshape, Flatten, Squeeze or Unsqueeze → one.

    x:[s] ─Unsqueeze(0)→ ─Unsqueeze(2)→ [1, s, 1]     becomes     x ─Unsqueeze([0, 2])→ [1, s, 1]
    x:[b, 4, 8] ─Squeeze→ ─Reshape→ [b, 32]     becomes     x ─Reshape([0, 32])→ [b, 32]
    """
    inner = made_by(node.inputs[0], *_OPS)
    if inner is None:
        return False
    return _join(edit, node, inner) or why("too few dims are known for one target", node)


def _join(edit: Edit, node: gs.Node, inner: gs.Node) -> bool:
    """Make ``node`` read the input of ``inner``; False if its target cannot be expressed."""
    source, result = inner.inputs[0], node.outputs[0]
    if node.op == inner.op == "Unsqueeze":
        axes = _joined_axes(node, inner)
        if axes is not None:
            constant = edit.constant(f"{result.name}_axes", np.array(axes, np.int64))
            edit.become(node, "Unsqueeze", [source, constant])
            return True
    # A dim of 0 cannot be a target: Reshape would copy the dim of the input in its place.
    shape = shape_of(result)
    if shape is None or None in shape or 0 in shape or attribute_of(node, "allowzero", 0) != 0:
        return False
    target = target_of(shape_of(source), shape)
    if target is None:
        return False
    constant = edit.constant(f"{result.name}_shape", np.array(target, np.int64))
    edit.become(node, "Reshape", [source, constant])
    return True


def _joined_axes(node: gs.Node, inner: gs.Node) -> list[int] | None:
    """Return the axes of the result that either of two Unsqueezes inserted."""
    outer_axes, inner_axes = axes_of(node), axes_of(inner)
    rank = rank_of(node.inputs[0])
    if rank is None and inner_axes is not None and rank_of(inner.inputs[0]) is not None:
        rank = len(inner.inputs[0].shape) + len(inner_axes)
    if outer_axes is None or inner_axes is None or rank is None:
        return None
    full = rank + len(outer_axes)
    added = {axis % full for axis in outer_axes}
    kept = [axis for axis in range(full) if axis not in added]
    # Inner axes count in the result of the inner node; in the final shape, they are those that the
    # outer node did not insert.
    return sorted(added | {kept[axis % rank] for axis in inner_axes})


@rewrites("Reshape")
def constant_reshapes(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Reshape to a computed shape → to a constant one: 0 copies a dim, -1 infers one.

    Reshape(x:[batch, seq, 384], Concat(batch, seq, 12, 32))
    becomes     Reshape(x, [0, 0, 12, 32])
    """
    analysis = edit.once(ShapeValueAnalysis)
    if isinstance(node.inputs[1], gs.Constant):
        return False
    if attribute_of(node, "allowzero", 0) != 0:
        return why("allowzero gives 0 another meaning", node)
    dims = analysis.of(node.inputs[1])
    if dims is None or dims.is_scalar:
        return why("the target shape is not known", node)
    target = target_of(shape_of(node.inputs[0]), dims.items)
    if target is None:
        return why("too few dims of the target are known", node)
    values = np.array(target, dtype=np.int64)
    set_input(node, 1, edit.constant(f"{node.outputs[0].name}_shape", values))
    return True


def target_of(shape: tuple[Dim, ...] | None, dims: tuple[Dim, ...]) -> list[int] | None:
    """Return ``dims`` as ints, 0 for a dim copied from the input, one -1 for an inferred dim.

    A -1 cannot be inferred beside a copied dim that is 0 at run time (an empty batch), so the two
    are combined only if the computed target already had the -1.
    """
    target: list[int] = []
    for index, dim in enumerate(dims):
        if isinstance(dim, int):
            target.append(dim)
        # A 0 copies only the dim at its own index, so an equal dim elsewhere does not help.
        elif dim is not None and shape is not None and shape[index : index + 1] == (dim,):
            target.append(0)
        else:
            target.append(-1)
    # Arithmetic on sizes may give a negative dim, which is left for the runtime to report.
    if min(target, default=0) < -1 or target.count(-1) > 1:
        return None
    return None if -1 in target and 0 in target and -1 not in dims else target


_UNARY = (
    "Abs", "Cast", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish",
    "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid",
    "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
)  # fmt: skip
_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Equal", "Greater", "Less", "And", "Or")


@rewrites("Transpose")
def merge_transposes(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Two Transposes, consecutive or around an elementwise op → one.

    x ─Transpose([0, 2, 1])→ ─Relu→ ─Mul(2)→ ─Transpose([0, 2, 1])→ y
    becomes     x ─Relu→ ─Mul(2)→ y
    """
    outer, inner = _perm(node), made_by(node.inputs[0], "Transpose")
    if outer is None:
        return False
    if inner is None:
        return _through(edit, node, outer, why)
    perm = _perm(inner)
    if perm is None or not sorted(perm) == sorted(outer) == list(range(len(perm))):
        return False
    set_input(node, 0, inner.inputs[0])
    node.attrs["perm"] = [perm[axis] for axis in outer]
    return True


@rewrites("Transpose")
def transposes_of_units(edit: Edit, node: gs.Node, _: Why) -> bool:
    """Transpose that moves axes of size 1 to the end or away from it → of the other axes alone.

    x:[b, h, t, 1, d] ─Transpose([0, 2, 1, 4, 3])→ y:[b, t, h, d, 1]
    becomes     x ─Squeeze([3])→ ─Transpose([0, 2, 1, 3])→ ─Unsqueeze([4])→ y

    onnxruntime copies numbers one by one unless the last axes stay last: a third of Mamba 2 with 8
    rows of 64 tokens. Without the axes of size 1 it copies rows of d numbers, or nothing.
    """
    perm, shape = _perm(node), shape_of(node.inputs[0])
    if perm is None or shape is None or sorted(perm) != list(range(len(shape))):
        return False
    axes = [axis for axis in perm if shape[axis] != 1]
    order = [sorted(axes).index(axis) for axis in axes]
    is_last = shape[perm[-1]] == 1
    if not axes or not (is_last or (perm[-1] != len(perm) - 1 and order[-1] == len(order) - 1)):
        return False
    units = [axis for axis, dim in enumerate(shape) if dim == 1]
    places = [place for place, axis in enumerate(perm) if shape[axis] == 1]
    dtype, dims = node.inputs[0].dtype, [shape[axis] for axis in sorted(axes)]
    squeezed, restored = (edit.constant("axes", np.array(one, np.int64)) for one in (units, places))
    rows = edit.add("Squeeze", node, [node.inputs[0], squeezed], dtype, dims)
    if order != sorted(order):
        dims = [shape[axis] for axis in axes]
        rows = edit.add("Transpose", node, [rows], dtype, dims, perm=order)
    edit.become(node, "Unsqueeze", [rows, restored])
    return True


def _perm(transpose: gs.Node) -> list[int] | None:
    perm = attribute_of(transpose, "perm", None)
    return perm if isinstance(perm, list) else None


def _through(edit: Edit, node: gs.Node, outer: list[int], why: Why) -> bool:
    """Remove the transposes before and after an elementwise op, if they cancel."""
    middle = made_by(node.inputs[0], *_UNARY, *_BINARY)
    operands = None if middle is None else _operands(middle)
    if middle is None or operands is None:
        return False
    perms = [_perm(maker) for _, maker in operands]
    if any(perm is None or [perm[a] for a in outer] != sorted(perm) for perm in perms):
        return False
    result = middle.outputs[0]
    if len(result.outputs) != 1 or edit.is_output(result) or not edit.holds(middle):
        return why("something else reads the value between two transposes", node)
    if edit.is_output(node.outputs[0]):
        return why("it names a graph output", node)
    for index, maker in operands:
        set_input(middle, index, maker.inputs[0])
    shape = result.shape
    result.shape = None if shape is None else [shape[axis] for axis in outer]
    # After the shape is permuted: bypass merges it with that of the result.
    edit.bypass(node, result)
    # Until then a removed node counts as a reader of its input, and the next match counts readers.
    edit.finish()
    return True


def _operands(middle: gs.Node) -> list[tuple[int, gs.Node]] | None:
    """Return the transposed operands with their input indices; all others must be scalars."""
    transposed: list[tuple[int, gs.Node]] = []
    for index, tensor in enumerate(middle.inputs):
        maker = made_by(tensor, "Transpose")
        if maker is not None:
            transposed.append((index, maker))
        # A constant with axes would have to be transposed as well.
        elif scalar_of(tensor) is None or len(tensor.shape) > 0:
            return None
    return transposed or None
