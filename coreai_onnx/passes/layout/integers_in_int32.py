"""Matrices of integers and booleans in dtypes that WebGPU computes, where their values fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.standard.op_schemas import types_of
from coreai_onnx.passes.analysis.magnitudes import Magnitudes
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import (
    cast_to,
    constant_of,
    dtype_of,
    is_standard,
    maker,
    rank_of,
    scalar_of,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why
from coreai_onnx.targets.opsets import PORTABLE_OPSET
from coreai_onnx.targets.webgpu_kernels import WEBGPU_KERNELS

_OPS = """Abs Add ArgMax ArgMin Clip Concat CumSum Div Equal Expand Flatten Gather GatherElements
GatherND Greater GreaterOrEqual Less LessOrEqual Mul Neg Pad ReduceMax ReduceMin ReduceSum Reshape
ScatterElements Slice Squeeze Sub Tile Transpose Unsqueeze Where""".split()
"""Operators of which no result is rounded if the operands are integers."""
_LIMITS = {np.dtype(np.int32): float(np.iinfo(np.int32).max), np.dtype(np.float32): float(1 << 24)}
"""The magnitudes up to which a dtype has all integers."""
_NARROW = tuple(np.dtype(t) for t in (bool, np.uint8, np.int8, np.int16, np.uint16))
"""Dtypes whose values all fit."""
_INT64 = np.dtype(np.int64)
_VIEWS = ("Expand", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


@rewrites(*_OPS)
def integers_in_int32(edit: Edit, node: gs.Node, why: Why) -> bool:
    """A matrix of int64, or of booleans, without a kernel → in int32, or in float32.

    LessOrEqual(i:int64[s, 1], j:int64[1, s])
    becomes     LessOrEqual(Cast(i, to=int32), Cast(j, to=int32))

    Transpose(x:bool[a, b])     becomes     Cast(Transpose(Cast(x, to=int32)), to=bool)

    Only where all values fit: positions, sizes, ids and masks do. Vectors stay as they are:
    onnxruntime keeps the arithmetic of sizes on the CPU.
    """
    kinds, types = _kernel(node), types_of(node.op, PORTABLE_OPSET)
    results = [*zip(types.outputs, node.outputs, strict=False)]
    operands = [(types.input_type(i), tensor) for i, tensor in enumerate(node.inputs)]
    for variable, dtypes in kinds.items():
        tensors = [t for v, t in operands if v == variable and not t.is_empty()]
        dtype = dtype_of(tensors[0]) if tensors else None
        wide = _wide(dtype, dtypes)
        if dtype is None or wide is None:
            continue
        produced = [t for v, t in results if v == variable]
        changed = _of_matrices(node, [*tensors, *node.outputs], why)
        if not changed or not _fit(edit, node, [*tensors, *produced], dtype, wide, why):
            continue
        for index, (v, tensor) in enumerate(operands):
            if v == variable and not tensor.is_empty():
                set_input(node, index, narrowed(edit, node, tensor, wide))
        if produced:
            # Its readers get the dtype that they had: the Cast goes where they are rewritten too.
            inputs, shape = list(node.inputs), shape_of(node.outputs[0])
            new = edit.add(node.op, node, inputs, wide, shape, **node.attrs)
            edit.become(node, "Cast", [new], to=int(ir.DataType.from_numpy(dtype)))
        return True
    return False


@rewrites("Cast", "Gather", "GatherElements", "ScatterElements")
def readers_of_int32(edit: Edit, node: gs.Node, why: Why) -> bool:
    """A reader of int32 that was converted to int64 → of the int32.

    Gather(x, Cast(i:int32, to=int64))     becomes     Gather(x, i)
    """
    index = 0 if node.op == "Cast" else 1
    tensor, int32 = node.inputs[index], np.dtype(np.int32)
    dtype, source = dtype_of(tensor), maker(tensor)
    if source is None or cast_to(source) is None or dtype is None:
        return False
    before = dtype_of(source.inputs[0])
    if before is None or before.kind not in "bif" or dtype not in (_INT64, *_NARROW[1:]):
        return False
    # A vector is converted from a float where it is; int64 is what onnxruntime reads on the CPU.
    if before != int32 and (rank_of(tensor) in (None, 0, 1) or before == _INT64):
        return False
    if cast_to(node) == ir.DataType.INT64 and node.op == "Cast":
        return False
    if before != int32 or dtype != _INT64:
        bound = edit.once(Magnitudes, edit.graph).of(source.inputs[0])
        limit = _LIMITS[int32] if dtype == _INT64 else float(np.iinfo(dtype).max)
        if bound is None or bound > limit:
            return why("the values may not fit into int32", node)
    set_input(node, index, narrowed(edit, node, tensor, int32))
    return True


@rewrites("Equal")
def zeros_as_booleans(edit: Edit, node: gs.Node, _: Why) -> bool:
    """Integers that equal zero → those that are not true, whatever their range is.

    Equal(x:int64, 0)     becomes     Not(Cast(x, to=bool))
    """
    x, other = node.inputs
    if dtype_of(x) != _INT64 or (rank_of(x) or 0) < 2 or scalar_of(other, x) != 0:
        return False
    as_bool = edit.add("Cast", node, [x], _NARROW[0], shape_of(x), to=int(ir.DataType.BOOL))
    edit.become(node, "Not", [as_bool])
    return True


@rewrites("Cast")
def casts_before_views(edit: Edit, node: gs.Node, _: Why) -> bool:
    """Cast of a view of int64, which has no kernel → view of a Cast.

    Cast(Unsqueeze(x:int64), to=float)     becomes     Unsqueeze(Cast(x, to=float))
    """
    view, dtype = maker(node.inputs[0]), dtype_of(node.outputs[0])
    if view is None or not is_standard(view, *_VIEWS) or dtype_of(node.inputs[0]) != _INT64:
        return False
    if dtype is None or dtype == _INT64 or (rank_of(node.inputs[0]) or 0) < 2:
        return False
    x, *others = view.inputs
    cast = edit.add("Cast", node, [x], dtype, shape_of(x), to=node.attrs["to"])
    edit.become(node, view.op, [cast, *others], **view.attrs)
    return True


def narrowed(edit: Edit, node: gs.Node, tensor: gs.Tensor, dtype: np.dtype[Any]) -> gs.Tensor:
    """Return a tensor in another dtype, which has all of its values.

    Args:
        edit: The edit of the graph.
        node: The reader.
        tensor: The tensor.
        dtype: The dtype.
    """
    values = constant_of(tensor)
    if values is not None:
        return edit.constant(f"{tensor.name}_{dtype.name}", values.astype(dtype))
    source = maker(tensor)
    if source is not None and cast_to(source) is not None:
        tensor = source.inputs[0]
        if dtype_of(tensor) == dtype:
            return tensor
    to = int(ir.DataType.from_numpy(dtype))
    return edit.add("Cast", node, [tensor], dtype, shape_of(tensor), to=to)


def _kernel(node: gs.Node) -> dict[str, list[str]]:
    """Return the dtypes of each type variable for which WebGPU has a kernel."""
    entries = WEBGPU_KERNELS[node.op]
    kinds = next(k for first, last, k in entries if first <= PORTABLE_OPSET <= last)
    return {variable: dtypes.split() for variable, dtypes in kinds.items()}


def _wide(dtype: np.dtype[Any] | None, known: list[str]) -> np.dtype[Any] | None:
    """Return the dtype to compute in; None if there is a kernel, or none for integers."""
    if dtype is None or dtype.name in known or dtype not in (*_NARROW, _INT64):
        return None
    wide = next((one for one in ("int32", "float") if one in known), None)
    return {"int32": np.dtype(np.int32), "float": np.dtype(np.float32), None: None}[wide]


def _of_matrices(node: gs.Node, tensors: list[Any], why: Why) -> bool:
    ranks = [rank_of(tensor) for tensor in tensors]
    if any(rank is not None and rank > 1 for rank in ranks):
        return True
    return None in ranks and why("the rank is not known", node)


def _fit(
    edit: Edit,
    node: gs.Node,
    tensors: list[Any],
    dtype: np.dtype[Any],
    wide: np.dtype[Any],
    why: Why,
) -> bool:
    """Return whether all values of the tensors fit into another dtype."""
    if dtype in _NARROW and node.op not in ("CumSum", "ReduceSum"):
        return True
    bounds = edit.once(Magnitudes, edit.graph)
    sizes = [bounds.of(tensor) for tensor in tensors]
    if all(size is not None and size <= _LIMITS[wide] for size in sizes):
        return True
    return why(f"the values may not fit into {wide.name}", node)
