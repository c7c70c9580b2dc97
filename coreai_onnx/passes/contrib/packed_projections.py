"""Computes queries, keys and values of onnxruntime's GroupQueryAttention in one product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coreai_onnx.model.inventory import CONTRIB_DOMAIN
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import joined_name
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import (
    Dim,
    input_of,
    is_standard,
    maker,
    shape_of,
)
from coreai_onnx.passes.engine.why import Why


@dataclass(frozen=True)
class _Layer:
    """A linear layer.

    Attributes:
        product: MatMul, or MatMulNBits.
        weights: A matrix, or quantized values, scales and perhaps zero points.
        axis: The axis of output features in each of them.
        bias: The bias, if there is one.
        last: The node that produces the output of the layer.
    """

    product: gs.Node
    weights: tuple[gs.Constant, ...]
    axis: int
    bias: gs.Constant | None
    last: gs.Node

    @property
    def columns(self) -> int:
        """The number of output features."""
        return int(self.weights[0].shape[self.axis])

    def fits(self, other: _Layer) -> bool:
        """Whether one product can compute both layers."""
        mine, its = self.product, other.product
        same = {name: value for name, value in mine.attrs.items() if name != "N"}
        return (
            mine.inputs[0] is its.inputs[0]
            and mine.op == its.op
            and all(its.attrs.get(name) == value for name, value in same.items())
            and len(self.weights) == len(other.weights)
            and (self.bias is None) == (other.bias is None)
        )


@rewrites()
def contrib_packed_projections(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Three products that feed one GroupQueryAttention → one product, which the op splits itself.

    MatMul(x, q) → a, MatMul(x, k) → b, MatMul(x, v) → c, GroupQueryAttention(a, b, c, …) → y
    becomes     MatMul(x, q+k+v) → a, GroupQueryAttention(a, , , …) → y

    Biases and 4-bit weights are concatenated too. The weights are concatenated when the model is
    written, one result at a time. A weight with another reader is left unchanged.
    """
    if context_of(edit.graph).kind == "function":
        return False  # in a function, weights are inputs
    if (node.domain, node.op) != (CONTRIB_DOMAIN, "GroupQueryAttention"):
        return False
    if len(node.inputs) < 3 or any(tensor.is_empty() for tensor in node.inputs[:3]):
        return False
    layers = [_layer(tensor, node, edit) for tensor in node.inputs[:3]]
    present = [layer for layer in layers if layer is not None]
    if len(present) < len(layers):
        return why("queries, keys and values must be products without other readers", node)
    if not all(present[0].fits(layer) for layer in present[1:]):
        return why("the products must have the same operator and input", node)
    _pack(edit, node, present)
    return True


def _layer(tensor: gs.Tensor, reader: gs.Node, edit: Edit) -> _Layer | None:
    """Return the linear layer that produces ``tensor``, if ``reader`` is its only reader."""
    last, bias = maker(tensor), None
    if last is None or not _is_read_by(tensor, reader, edit) or not edit.holds(last):
        return None
    product = last
    if is_standard(last, "Add"):
        for inner, other in (last.inputs, last.inputs[::-1]):
            dot = maker(inner)
            if dot is not None and is_standard(dot, "MatMul") and _is_row(other, inner):
                product, bias = dot, other
        if product is last or not _is_read_by(product.outputs[0], last, edit):
            return None
    if is_standard(product, "MatMul") and edit.holds(product):
        parts, axis = product.inputs[1:2], 1
    elif (product.domain, product.op) == (CONTRIB_DOMAIN, "MatMulNBits"):
        parts, axis, bias = product.inputs[1:4], 0, input_of(product, 5) if bias is None else bias
    else:
        return None
    weights = [one for one in parts if isinstance(one, gs.Constant)]
    # g_idx (input 4) reorders the columns of one layer, which one product cannot do for three.
    if len(weights) < sum(not one.is_empty() for one in parts) or input_of(product, 4) is not None:
        return None
    owned = [*weights] if bias is None else [*weights, bias]
    # The file would have a shared weight twice.
    if any(len(one.outputs) > 1 or edit.is_output(one) for one in owned):
        return None
    if (axis and len(weights[0].shape) != 2) or not (bias is None or isinstance(bias, gs.Constant)):
        return None
    return _Layer(product, tuple(weights), axis, bias, last)


def _is_read_by(tensor: gs.Tensor, reader: gs.Node, edit: Edit) -> bool:
    return not edit.is_output(tensor) and len(tensor.outputs) == 1 and tensor.outputs[0] is reader


def _is_row(tensor: gs.Tensor, product: gs.Tensor) -> bool:
    shape = shape_of(product)
    return isinstance(tensor, gs.Constant) and shape is not None and shape_of(tensor) == shape[-1:]


def _pack(edit: Edit, node: gs.Node, layers: list[_Layer]) -> None:
    first, columns = layers[0], sum(layer.columns for layer in layers)
    parts = zip(*(layer.weights for layer in layers), strict=True)
    inputs: list[gs.Tensor] = [first.product.inputs[0]]
    inputs += [_joined(edit, list(part), first.axis) for part in parts]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    bias = _joined(edit, biases, 0) if biases else None
    attrs = dict(first.product.attrs)
    if "N" in attrs:
        attrs["N"] = columns
        if bias is not None:
            # The bias is input 5 of MatMulNBits.
            inputs += [gs.Variable.empty() for _ in range(5 - len(inputs))]
            inputs, bias = [*inputs, bias], None
    op, domain = first.product.op, first.product.domain
    product = edit.add(op, first.product, inputs, domain=domain, **attrs)
    shape = shape_of(first.product.outputs[0])
    wide: list[Dim] | None = None if shape is None else [*shape[:-1], columns]
    product.dtype, product.shape = first.product.outputs[0].dtype, wide
    if bias is not None:
        added = edit.add("Add", first.last, [product, bias], product.dtype, wide)
        product = added
    absent = [gs.Variable.empty(), gs.Variable.empty()]
    rest = list(node.inputs[3:])
    edit.become(node, node.op, [product, *absent, *rest], domain=node.domain, **node.attrs)
    for layer in layers:
        edit.remove(layer.product)
        edit.remove(layer.last)


def _joined(edit: Edit, parts: list[gs.Constant], axis: int) -> gs.Constant:
    name = joined_name([part.name for part in parts])
    shape = [int(size) for size in parts[0].shape]
    shape[axis] = sum(int(part.shape[axis]) for part in parts)
    return edit.lazy(name, lambda *values: np.concatenate(values, axis=axis), parts, shape)
