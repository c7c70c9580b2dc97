"""Nodes in the form for which execution providers have kernels (`targets/coverage.py`)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import (
    attribute_of,
    constant_of,
    dtype_of,
    input_of,
    is_standard,
    made_by,
    maker,
    rank_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why

_INT32 = int(ir.DataType.INT32)
_LARGEST_TABLE = 1 << 16
"""Elements of a table that is copied: buckets of positions are few, words are many."""


@rewrites("CastLike")
def casts_of_dtypes(edit: Edit, node: gs.Node, why: Why) -> bool:
    """CastLike of a known dtype → Cast: a provider computes the other operand only for its dtype.

    CastLike(x, y:f16)     becomes     Cast(x, to=f16)
    """
    dtype = dtype_of(node.inputs[1])
    if dtype is None:
        return why("a dtype is not known", node)
    edit.become(node, "Cast", node.inputs[:1], to=int(ir.DataType.from_numpy(dtype)))
    return True


@rewrites("Sum")
def sums_of_two(edit: Edit, node: gs.Node, _: Why) -> bool:
    """Sum of two → Add, for which WebGPU has a kernel.

    Sum(x, y)     becomes     Add(x, y)
    """
    if len(node.inputs) != 2:
        return False
    edit.become(node, "Add", list(node.inputs))
    return True


@rewrites("Min", "Max")
def extrema_of_two(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Min and Max of two → Where, for which WebGPU has kernels.

    Min(x, y)     becomes     Where(Greater(x, y), y, x)
    """
    if len(node.inputs) != 2:
        return False
    # A constant comes last: if it is finite, NaN needs no care.
    x, y = sorted(node.inputs, key=lambda tensor: isinstance(tensor, gs.AnyConstant))
    dtype, shape = dtype_of(x), shape_of(node.outputs[0])
    if dtype is None:
        return why("the dtype is not known", node)
    other = "Greater" if node.op == "Min" else "Less"
    beyond = edit.add(other, node, [x, y], np.dtype(bool), shape)
    choice = [beyond, y, x]
    if dtype.kind == "f" and not _is_finite(y):
        # A comparison with NaN is false: the choice is x, NaN or not, but never a NaN of y.
        chosen = edit.add("Where", node, choice, dtype, shape)
        is_number = edit.add("Equal", node, [y, y], np.dtype(bool), shape_of(y))
        choice = [is_number, chosen, y]
    edit.become(node, "Where", choice)
    return True


@rewrites("Neg", "Abs")
def negated_integers(edit: Edit, node: gs.Node, _: Why) -> bool:
    """Neg and Abs of a matrix of integers → a difference, which has a kernel for int32.

    Neg(x)     becomes     Sub(0, x)

    Abs(x)     becomes     Max(x, Sub(0, x))
    """
    x, dtype = node.inputs[0], dtype_of(node.inputs[0])
    if dtype is None or dtype.kind != "i" or (rank_of(x) or 0) < 2:
        return False
    zero = edit.constant("zero", np.zeros((), dtype))
    if node.op == "Neg":
        edit.become(node, "Sub", [zero, x])
    else:
        edit.become(node, "Max", [x, edit.add("Sub", node, [zero, x], dtype, shape_of(x))])
    return True


@rewrites("Clip")
def bounds_of_integers(edit: Edit, node: gs.Node, _: Why) -> bool:
    """Clip of integers → Max and Min.

    Clip(x, low, high)     becomes     Min(Max(x, low), high)
    """
    x, dtype = node.inputs[0], dtype_of(node.inputs[0])
    bounds = [(op, input_of(node, index)) for op, index in (("Max", 1), ("Min", 2))]
    steps = [(op, bound) for op, bound in bounds if bound is not None]
    if dtype is None or dtype.kind != "i" or not steps:
        return False
    for op, bound in steps[:-1]:
        x = edit.add(op, node, [x, bound], dtype, shape_of(x))
    op, bound = steps[-1]
    edit.become(node, op, [x, bound])
    return True


def _is_finite(tensor: gs.Tensor) -> bool:
    values = constant_of(tensor)
    return values is not None and bool(np.isfinite(values).all())


@rewrites("IsNaN")
def nans_by_comparison(edit: Edit, node: gs.Node, _: Why) -> bool:
    """IsNaN → the comparison of a number with itself.

    IsNaN(x)     becomes     Not(Equal(x, x))
    """
    x = node.inputs[0]
    same = edit.add("Equal", node, [x, x], np.dtype(bool), shape_of(x))
    edit.become(node, "Not", [same])
    return True


@rewrites("Or", "Xor")
def alternatives(edit: Edit, node: gs.Node, _: Why) -> bool:
    """Or → And, and Xor → And and Not, for which WebGPU has kernels.

    Or(x, y)     becomes     Not(And(Not(x), Not(y)))
    """
    dtype, shape = np.dtype(bool), shape_of(node.outputs[0])
    x, y = node.inputs
    no_x, no_y = (edit.add("Not", node, [t], dtype, shape_of(t)) for t in (x, y))
    neither = edit.add("And", node, [no_x, no_y], dtype, shape)
    if node.op == "Or":
        edit.become(node, "Not", [neither])
        return True
    both = edit.add("And", node, [x, y], dtype, shape)
    others = [edit.add("Not", node, [t], dtype, shape) for t in (neither, both)]
    edit.become(node, "And", others)
    return True


@rewrites("Sign")
def signs_by_comparison(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Sign of integers → comparisons with zero.

    Sign(x)     becomes     Cast(Greater(x, 0)) - Cast(Less(x, 0))
    """
    x = node.inputs[0]
    dtype, shape = dtype_of(x), shape_of(x)
    if dtype is None or dtype.kind != "i":
        return why("the sign of NaN is NaN", node)
    zero, to = edit.constant("zero", np.zeros((), dtype)), int(ir.DataType.from_numpy(dtype))
    sides = []
    for op in ("Greater", "Less"):
        side = edit.add(op, node, [x, zero], np.dtype(bool), shape)
        sides.append(edit.add("Cast", node, [side], dtype, shape, to=to))
    edit.become(node, "Sub", sides)
    return True


@rewrites("ArgMax", "ArgMin")
def positions_of_doubles(edit: Edit, node: gs.Node, _: Why) -> bool:
    """ArgMax and ArgMin of integers → of float64, for which CUDA has kernels.

    ArgMax(x:i64)     becomes     ArgMax(Cast(x, to=f64))

    Integers beyond 2^53 that round to the same float64 count as equal.
    """
    x, dtype = node.inputs[0], dtype_of(node.inputs[0])
    if dtype is None or dtype.kind not in "iu":
        return False
    to = int(ir.DataType.DOUBLE)
    wide = edit.add("Cast", node, [x], np.dtype(np.float64), shape_of(x), to=to)
    set_input(node, 0, wide)
    return True


@rewrites("ConstantOfShape")
def filled_by_expand(edit: Edit, node: gs.Node, _: Why) -> bool:
    """ConstantOfShape of a matrix → Expand of a constant, which a provider fills itself.

    ConstantOfShape(dims, value=0)     becomes     Expand(0, dims)
    """
    if (rank_of(node.outputs[0]) or 0) < 2:
        return False
    value = node.attrs.get("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value.values)
    edit.become(node, "Expand", [edit.constant("fill", fill.reshape(())), node.inputs[0]])
    return True


@rewrites("Trilu")
def triangles_of_positions(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Trilu → a comparison of positions.

    Trilu(x:[a, b], k, upper=0)     becomes     Where(column - row <= k, x, 0)
    """
    x, dtype, shape = node.inputs[0], dtype_of(node.inputs[0]), shape_of(node.inputs[0])
    if dtype is None or shape is None:
        return why("dtype or rank are not known", node)
    rows, columns = (_positions(edit, node, x, axis) for axis in (-2, -1))
    dims = shape[-2:]
    distance = edit.add("Sub", node, [columns, rows], np.dtype(np.int32), dims)
    k = input_of(node, 1)
    if k is None:
        limit: gs.Tensor = edit.constant("diagonal", np.zeros((), np.int32))
    elif (value := constant_of(k, at_most=1)) is not None:
        limit = edit.constant("diagonal", value.astype(np.int32))
    else:
        limit = edit.add("Cast", node, [k], np.dtype(np.int32), shape_of(k), to=_INT32)
    comparison = "GreaterOrEqual" if attribute_of(node, "upper", 1) else "LessOrEqual"
    kept = edit.add(comparison, node, [distance, limit], np.dtype(bool), dims)
    if dtype == np.dtype(bool):
        edit.become(node, "And", [x, kept])
    else:
        edit.become(node, "Where", [kept, x, edit.constant("zero", np.zeros((), dtype))])
    return True


@rewrites("GatherND")
def gathers_of_rows(edit: Edit, node: gs.Node, why: Why) -> bool:
    """GatherND at computed indices, which have to be int64 → Gather, which takes int32.

    GatherND(x:[a, b, c], i:[n, 2])
    becomes     Gather(Reshape(x, [a * b, c]), ReduceSum(i * [b, 1], -1))
    """
    x, indices = node.inputs
    shape = shape_of(indices)
    count = shape[-1] if shape else None
    if maker(indices) is None or attribute_of(node, "batch_dims", 0) != 0:
        return False
    # Until calls are inlined, lengths may be unknown by which `gathers_of_ranges` needs no Gather.
    if not edit.once(_is_inlined, edit.graph):
        return False
    if not isinstance(count, int) or shape is None or len(shape) < 2:
        return why("the number of axes is not known", node)
    int32, int64 = np.dtype(np.int32), np.dtype(np.int64)

    def in_int32(tensor: gs.Tensor) -> gs.Variable:
        # No tensor of a GPU has more elements than int32 can count.
        return edit.add("Cast", node, [tensor], int32, shape_of(tensor), to=_INT32)

    def product(first: int, last: int) -> gs.Variable:
        part = edit.add("Shape", node, [x], int64, [last - first], start=first, end=last)
        return edit.add("ReduceProd", node, [part], int64, [1], keepdims=1)

    zero, narrow = edit.constant("zero", np.zeros((), np.int32)), in_int32(indices)
    sizes = in_int32(edit.add("Shape", node, [x], int64, [count], start=0, end=count))
    below = edit.add("Less", node, [narrow, zero], np.dtype(bool), shape)
    shift = edit.add("Where", node, [below, sizes, zero], int32, shape)
    positions = edit.add("Add", node, [narrow, shift], int32, shape)
    one = edit.constant("one", np.ones(1, np.int64))
    strides: list[gs.Tensor] = [*(product(axis + 1, count) for axis in range(count - 1)), one]
    factors = in_int32(edit.add("Concat", node, strides, int64, [count], axis=0))
    scaled = edit.add("Mul", node, [positions, factors], int32, shape)
    axes = edit.constant("axes", np.array([len(shape) - 1], np.int64))
    rows = edit.add("ReduceSum", node, [scaled, axes], int32, shape[:-1], keepdims=0)
    rest = edit.add("Shape", node, [x], int64, None, start=count)
    target = edit.add("Concat", node, [product(0, count), rest], int64, None, axis=0)
    dims = shape_of(x)
    flat_dims = None if dims is None else [None, *dims[count:]]
    flat = edit.add("Reshape", node, [x, target], dtype_of(x), flat_dims, allowzero=1)
    edit.become(node, "Gather", [flat, rows], axis=0)
    return True


@rewrites("Cast")
def indices_in_int32(edit: Edit, node: gs.Node, _: Why) -> bool:
    """Conversion of indices that a provider found, as int64 → Gather from their range.

    Cast(ArgMax(x:[a, b], axis=1), to=int32)     becomes     Gather([0, …, b - 1]:int32, ArgMax(x))
    """
    indices, dtype = node.inputs[0], dtype_of(node.outputs[0])
    source = maker(indices)
    if source is None or not is_standard(source, "ArgMax", "ArgMin", "TopK"):
        return False
    if dtype not in (np.dtype(np.int32), np.dtype(np.float32)) or dtype_of(indices) == dtype:
        return False
    x, default = source.inputs[0], -1 if source.op == "TopK" else 0
    rank, axis = rank_of(x), attribute_of(source, "axis", default)
    if indices is source.outputs[0] and source.op == "TopK":
        return False
    if rank is None:
        return False
    steps = _range(edit, node, x, axis % rank)
    table = edit.add("Cast", node, [steps], dtype, shape_of(steps), to=node.attrs["to"])
    edit.become(node, "Gather", [table, indices], axis=0)
    return True


def _is_inlined(graph: gs.Graph) -> bool:
    return all(node.domain in (None, "", CONTRIB_DOMAIN) for node in graph.nodes)


def _positions(edit: Edit, node: gs.Node, x: gs.Tensor, axis: int) -> gs.Tensor:
    """Return the positions along one of the last two axes, int32 ``[n, 1]`` or ``[1, n]``."""
    steps = _range(edit, node, x, (rank_of(x) or 0) + axis)
    (dim,) = shape_of(steps) or (None,)
    narrow = edit.add("Cast", node, [steps], np.dtype(np.int32), [dim], to=_INT32)
    other = edit.constant("axis", np.array([1 if axis == -2 else 0], np.int64))
    dims = [dim, 1] if axis == -2 else [1, dim]
    return edit.add("Unsqueeze", node, [narrow, other], np.dtype(np.int32), dims)


def _range(edit: Edit, node: gs.Node, x: gs.Tensor, axis: int) -> gs.Tensor:
    """Return the positions along an axis, int64."""
    int64, dim = np.dtype(np.int64), (shape_of(x) or ())[axis]
    start, step = (edit.constant("bound", np.array(value, np.int64)) for value in (0, 1))
    first = edit.constant("axis", np.array([0], np.int64))
    length = edit.add("Shape", node, [x], int64, [1], start=axis, end=axis + 1)
    limit = edit.add("Squeeze", node, [length, first], int64, [])
    return edit.add("Range", node, [start, limit, step], int64, [dim])


@rewrites("Transpose")
def transposes_of_tables(edit: Edit, node: gs.Node, _: Why) -> bool:
    """Transpose of the rows of a table → the columns of the transposed table.

    Transpose(Gather(x:[n, d], i:[a, b], axis=0), perm=[2, 0, 1])
    becomes     Gather(Transpose(x), i, axis=1)

    onnxruntime would move the Transpose behind a mask, for which WebGPU has none of booleans.
    """
    gather = made_by(node.inputs[0], "Gather")
    if gather is None or attribute_of(gather, "axis", 0) != 0:
        return False
    table, indices = gather.inputs
    rank, values = rank_of(indices), constant_of(table, at_most=_LARGEST_TABLE)
    if rank is None or values is None or values.ndim != 2:
        return False
    if attribute_of(node, "perm", None) != [rank, *range(rank)]:
        return False
    columns = edit.constant(f"{table.name}_T", np.ascontiguousarray(values.T))
    edit.become(node, "Gather", [columns, indices], axis=1)
    return True
