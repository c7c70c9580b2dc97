"""What a model in bfloat16 computes, apart from the Casts that onnxruntime needs around it.

onnxruntime has few ops in bfloat16 on a CPU, so a conversion writes them in float32 between Casts.
Patterns that match the ops through this module match models in every dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    cast_to,
    composite,
    dtype_of,
    is_standard,
    made_by,
    maker,
)

BFLOAT16 = ir.DataType.BFLOAT16.numpy()
_WIDE = np.dtype(np.float32)
NARROW = (BFLOAT16, np.dtype(np.float16))
"""The dtypes that onnxruntime computes in float32 on x86."""


@dataclass(frozen=True)
class Computation:
    """An op in the dtype of its result; the matchers of nodes accept it.

    Attributes:
        op: Its op type.
        domain: Its domain.
        attrs: Its attributes.
        inputs: Its operands, before they are widened; constants may be float32.
        outputs: Its results.
        last: The node that produces the results: the op itself, or the Cast that rounds.
    """

    op: str
    domain: str | None
    attrs: Mapping[str, Any]
    inputs: Sequence[gs.Tensor]
    outputs: Sequence[gs.Variable]
    last: gs.Node


def computation(node: gs.Node) -> Computation:
    """Return what a node computes: for a Cast that rounds an op on widened numbers, that op.

    x:bf16 ─Cast→, y:bf16 ─Cast→, Mul ─Cast→ z:bf16     is     Mul(x, y) → z
    """
    op, inputs = _rounded(node) or (node, node.inputs)
    return Computation(op.op, op.domain, op.attrs, inputs, node.outputs, node)


def computed_by(tensor: gs.Tensor, *ops: str) -> Computation | None:
    """Return what produces a tensor if it is one of these standard ops, and its first output."""
    node = maker(tensor)
    if node is None or node.outputs[0] is not tensor:
        return None
    operation = computation(node)
    return operation if is_standard(operation, *ops) else None


def widened_call(
    edit: Edit, node: gs.Node, name: str
) -> tuple[gs.Node, gs.Tensor, np.dtype[Any]] | None:
    """Return a call in float32 that only a Cast reads, its input before it was widened, and dtype.

    x:bf16 ─Cast→ ─rms_norm(w:float)→ ─Cast→ y:bf16     is     rms_norm(…, w), x, bf16

    Returns None for other nodes.
    """
    dtype, call = _cast_dtype(node), maker(node.inputs[0]) if node.inputs else None
    if dtype is None or call is None or composite(call, name) is None:
        return None
    cast = made_by(call.inputs[0], "Cast")
    if cast is None or cast_to(cast) != ir.DataType.FLOAT or dtype_of(cast.inputs[0]) != dtype:
        return None
    return (call, cast.inputs[0], dtype) if edit.only_reader(call.outputs[0]) is node else None


def in_dtype(edit: Edit, tensor: gs.Tensor, dtype: np.dtype[Any]) -> gs.Tensor | None:
    """Return a tensor in a dtype: itself, before it was widened, or a constant of the same values.

    Small constants are stored in float32 once the Cast that widens them is folded. Returns None for
    other tensors of another dtype.
    """
    if dtype_of(tensor) == dtype:
        return tensor
    cast = made_by(tensor, "Cast")
    if cast is not None and dtype_of(cast.inputs[0]) == dtype:
        return cast.inputs[0]
    if not isinstance(tensor, gs.AnyConstant) or dtype_of(tensor) != _WIDE:
        return None
    values = np.asarray(tensor.values)
    narrow = values.astype(dtype)
    # A constant that was float32 in the model may have bits that a cast would lose.
    same = np.array_equal(narrow.astype(_WIDE), values, equal_nan=True)
    return edit.constant(f"{tensor.name}_{dtype.name}", narrow) if same else None


def _rounded(node: gs.Node) -> tuple[gs.Node, list[gs.Tensor]] | None:
    """Return the op whose result a Cast rounds to the dtype of its operands, and these."""
    dtype = _cast_dtype(node)
    op = maker(node.inputs[0]) if dtype is not None else None
    # None, since bodies of functions declare no dtypes.
    if dtype is None or op is None or dtype_of(op.outputs[0]) not in (_WIDE, None):
        return None
    operands = [_operand(tensor, dtype) for tensor in op.inputs]
    inputs = [tensor for tensor in operands if tensor is not None]
    # Without an operand of the dtype, it is a computation in float32 whose result is rounded.
    if len(inputs) < len(operands) or not any(dtype_of(tensor) == dtype for tensor in inputs):
        return None
    return op, inputs


def _cast_dtype(node: gs.Node) -> np.dtype[Any] | None:
    to = cast_to(node)
    return next((dtype for dtype in NARROW if ir.DataType.from_numpy(dtype) == to), None)


def _operand(tensor: gs.Tensor, dtype: np.dtype[Any]) -> gs.Tensor | None:
    """Return an operand before it was widened; None if it has more bits than the dtype."""
    present = dtype_of(tensor)
    # Constants were widened when they were folded; integers and masks have no wide form.
    if isinstance(tensor, gs.AnyConstant) or (present is not None and present.kind in "iub"):
        return tensor
    cast = made_by(tensor, "Cast")
    return cast.inputs[0] if cast is not None and dtype_of(cast.inputs[0]) == dtype else None
