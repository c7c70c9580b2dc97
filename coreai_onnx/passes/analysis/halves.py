"""Tensors whose last axis holds the same values twice, replaced with one half."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.match import (
    attribute_of,
    axes_of,
    is_standard,
    maker,
    rank_of,
    scalar_of,
    shape_of,
)
from coreai_onnx.passes.engine.tensor_table import TensorTable

_UNARY = ("Cos", "Sin", "Cast", "Neg")
_SCALED = ("Mul", "Div", "Add")


class Halves:
    """Finds ``f`` in ``op(Concat(f, f))`` and creates ``op(f)``, once per tensor."""

    def __init__(self, edit: Edit) -> None:
        """Create nodes with ``edit``."""
        self._edit = edit
        self._known: TensorTable[gs.Tensor | None] = TensorTable()

    def of(self, tensor: gs.Tensor) -> gs.Tensor | None:
        """Return the first half of a tensor whose halves are equal; None if this is unknown."""
        if tensor not in self._known:
            self._known[tensor] = self._halved(tensor)
        return self._known[tensor]

    def _halved(self, tensor: gs.Tensor) -> gs.Tensor | None:
        node = maker(tensor)
        shape = shape_of(tensor)
        if node is None or not self._edit.holds(node):
            return None
        if shape is None or not shape or not isinstance(shape[-1], int):
            return None
        if is_standard(node, "Concat"):
            twice = len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
            on_last = attribute_of(node, "axis", 0) in (-1, len(shape) - 1)
            return node.inputs[0] if twice and on_last else None
        if is_standard(node, *_UNARY):
            return self._again(node, [self.of(node.inputs[0])])
        if is_standard(node, *_SCALED) and scalar_of(node.inputs[1]) is not None:
            return self._again(node, [self.of(node.inputs[0]), node.inputs[1]])
        if is_standard(node, "Unsqueeze"):
            axes, rank = axes_of(node), rank_of(tensor)
            if axes is None or rank is None or any(a in (-1, rank - 1) for a in axes):
                return None
            return self._again(node, [self.of(node.inputs[0]), node.inputs[1]])
        return None

    def _again(self, node: gs.Node, inputs: list[gs.Tensor | None]) -> gs.Tensor | None:
        """Repeat a node on half of the lanes."""
        if any(tensor is None for tensor in inputs):
            return None
        made = self._edit.node(node.op, node, inputs, **node.attrs)
        half = made.outputs[0]
        whole = node.outputs[0]
        half.dtype, half.shape = whole.dtype, [*whole.shape[:-1], whole.shape[-1] // 2]
        return half
