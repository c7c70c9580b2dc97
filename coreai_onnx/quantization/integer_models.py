"""Quantizes activations and weights to 8 bits, in the form that onnxruntime fuses.

A product ``DequantizeLinear(QuantizeLinear(x)) @ DequantizeLinear(w)`` becomes onnxruntime's
``MatMulIntegerToFloat``; a convolution whose result is quantized as well, ``QLinearConv``. Other
runtimes compute the same with the plain ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import QuantizationError
from coreai_onnx.model.debug_info import SCOPE
from coreai_onnx.model.inventory import weights
from coreai_onnx.model.op_schemas import ONNX_DOMAINS
from coreai_onnx.quantization.activation_ranges import Range, value_ranges
from coreai_onnx.quantization.calibration import Feed
from coreai_onnx.quantization.packed_weights import decibels
from coreai_onnx.quantization.products import Products, origin
from coreai_onnx.quantization.quantized_models import refuse_few_bits, refuse_integers
from coreai_onnx.quantization.report import (
    KeptWeight,
    QuantizationReport,
    Quantized,
    QuantizedLayer,
)
from coreai_onnx.quantization.rules import Rules
from coreai_onnx.quantization.scheme import Scheme

LARGEST = 64
"""The largest magnitude of a quantized weight. AVX2 adds pairs of products of 8 bits in 16 bits,
which cannot overflow with weights of 7 bits
(https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html)."""
_OLDEST = 13
"""The first opset in which DequantizeLinear has an axis."""
_STEPS = 255


@dataclass(frozen=True, eq=False)
class _IntegerLayer:
    """A product or a convolution of the main graph.

    Attributes:
        node: ``MatMul``, ``Gemm`` or ``Conv``.
        weight: The initializer.
        axis: The axis of its outputs.
        result: The value whose range is quantized; None for products, whose result stays float.
    """

    node: ir.Node
    weight: ir.Value
    axis: int
    result: ir.Value | None

    @property
    def path(self) -> str:
        name = (self.weight.name or "").removesuffix(".T").removesuffix(".weight")
        return self.node.metadata_props.get(SCOPE, "") or name

    @property
    def array(self) -> np.ndarray:
        assert self.weight.const_value is not None
        return np.asarray(self.weight.const_value.numpy())

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        outputs = self.array.shape[self.axis]
        return outputs, self.array.size // max(outputs, 1)


def quantize_activations(
    models: Mapping[str, ir.Model], calibrated: str, rules: Rules, feeds: Iterable[Feed] | None
) -> dict[str, Quantized]:
    """Quantize the products and convolutions of the main graph of an entrypoint, in a copy.

    Inputs are uint8 with a zero point, weights int8 with a scale for each output.

    Args:
        models: The models by entrypoint.
        calibrated: The entrypoint of the calibration data.
        rules: Those that select no scheme leave layers out.
        feeds: The inputs of calls.

    Raises:
        QuantizationError: There is no data, or nothing to quantize, or a weight is not finite.
    """
    if feeds is None:
        raise QuantizationError("activations=True needs calibration data\n  give calibration=[…]")
    if len(models) > 1:
        raise QuantizationError("activations are quantized in programs of one entrypoint")
    model = models[calibrated]
    if model.graph.opset_imports.get("", 1) < _OLDEST:
        raise QuantizationError(f"quantized activations need opset {_OLDEST} or later")
    refuse_few_bits(model)
    copy = model.clone()
    layers, kept = _chosen(copy, rules)
    if not layers:
        if not kept:
            refuse_integers(model)
        raise QuantizationError("there is nothing to quantize: no MatMul, Gemm or Conv with weight")
    values = [layer.node.inputs[0] for layer in layers] + [layer.result for layer in layers]
    names = dict.fromkeys(v.name or "" for v in values if v is not None)
    writer = _IntegerWriter(copy, value_ranges(model, names, feeds))
    rows = [writer.write(layer) for layer in layers]
    report = QuantizationReport(tuple(rows), tuple(kept), weights(model)[1], weights(copy)[1])
    return {calibrated: Quantized(copy, report)}


def _chosen(model: ir.Model, rules: Rules) -> tuple[list[_IntegerLayer], list[KeptWeight]]:
    layers, kept = [], []
    for layer in _layers(model):
        if rules.leaves_out(layer.path, layer.weight.name or ""):
            nbytes = layer.array.nbytes
            kept.append(KeptWeight(layer.path, layer.shape, nbytes, "skipped by a pattern"))
        else:
            layers.append(layer)
    return layers, kept


def _layers(model: ir.Model) -> list[_IntegerLayer]:
    """Return the layers in the order of the nodes; those in functions and subgraphs are left."""
    found = {
        product.node: _IntegerLayer(product.node, product.weight, 1 - int(product.by_rows), None)
        for product in Products(model).products
        if product.root is model.graph
        and product.node.graph is model.graph
        and not (product.is_lookup or product.is_gathered)
        and product.dtype == ir.DataType.FLOAT
    }
    for node in model.graph:
        if node.op_type == "Conv" and node.domain in ONNX_DOMAINS:
            weight = origin(node.inputs[1]) if node.inputs[1] is not None else None
            tensor = None if weight is None else weight.const_value
            if weight is None or tensor is None or weight.is_graph_input():
                continue
            if tensor.dtype == ir.DataType.FLOAT and _constant_bias(node):
                found[node] = _IntegerLayer(node, weight, 0, _conv_result(node))
    return [found[node] for node in model.graph if node in found]


def _constant_bias(node: ir.Node) -> bool:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return bias is None or (bias.const_value is not None and not bias.is_graph_input())


def _bias_of(node: ir.Node, outputs: int) -> tuple[ir.Node, int, ir.Value] | None:
    """Return the constant bias of a layer: the node that reads it, the input, and the value."""
    reader, index = node, 2
    if node.op_type == "MatMul":
        readers = list(node.outputs[0].consumers())
        if len(readers) != 1 or readers[0].op_type != "Add" or node.outputs[0].is_graph_output():
            return None
        reader = readers[0]
        index = 1 if reader.inputs[0] is node.outputs[0] else 0
    bias = reader.inputs[index] if len(reader.inputs) > index else None
    if bias is None or bias.const_value is None or bias.is_graph_input():
        return None
    row = tuple(bias.const_value.shape.numpy()) == (outputs,)
    return (reader, index, bias) if row else None


def _conv_result(node: ir.Node) -> ir.Value:
    """Return the result of a convolution, after the Relu that is its only reader."""
    result = node.outputs[0]
    readers = list(result.consumers())
    alone = len(readers) == 1 and not result.is_graph_output()
    return readers[0].outputs[0] if alone and readers[0].op_type == "Relu" else result


class _IntegerWriter:
    """Inserts QuantizeLinear and DequantizeLinear."""

    def __init__(self, model: ir.Model, ranges: Mapping[str, Range]) -> None:
        self.graph, self.ranges = model.graph, ranges
        self._quantized: dict[ir.Value, tuple[ir.Value, np.ndarray]] = {}

    def write(self, layer: _IntegerLayer) -> QuantizedLayer:
        """Quantize the inputs, the weight and perhaps the result of a layer."""
        node, array = layer.node, layer.array.astype(np.float32)
        if not np.isfinite(array).all():
            raise QuantizationError(
                f"{layer.path}: the weight {layer.weight.name!r} has values that are not finite"
            )
        others = tuple(axis for axis in range(array.ndim) if axis != layer.axis)
        largest = np.abs(array).max(axis=others, initial=0)
        scales = np.where(largest > 0, largest / LARGEST, 1).astype(np.float32)
        wide = np.expand_dims(scales, others)
        codes = np.clip(np.rint(array / wide), -LARGEST, LARGEST).astype(np.int8)
        x = node.inputs[0]
        assert x is not None
        rounded, step = self._activation(x)
        node.replace_input_with(0, rounded)
        self._weight(layer, codes, scales)
        self._bias(node, step * scales)
        if layer.result is not None:
            self._round_result(layer.result)
        noise = np.square(array - codes * wide).sum(dtype=np.float64)
        sqnr = decibels(float(np.square(array).sum(dtype=np.float64)), float(noise))
        scheme = Scheme(8, 0, "rtn", symmetric=True, scale_dtype="float32")
        sizes = layer.array.nbytes, codes.nbytes + scales.nbytes
        return QuantizedLayer(
            layer.path, layer.weight.name or "", layer.shape, scheme, *sizes, sqnr
        )

    def _weight(self, layer: _IntegerLayer, codes: np.ndarray, scales: np.ndarray) -> None:
        """Read the weight through a DequantizeLinear in place of the initializer."""
        name, node = layer.weight.name or "", layer.node
        inputs = [
            self._initializer(f"{name}.int8", codes),
            self._initializer(f"{name}.scales", scales),
        ]
        made = self._node("DequantizeLinear", inputs, f"{name}.dequantized", node, layer.axis)
        source = node.inputs[1]
        assert source is not None
        turned = source.producer()
        while turned is not None and turned.op_type == "Transpose" and len(source.uses()) > 1:
            copy = self._node("Transpose", [made], f"{name}.turned", node)
            copy.producer().attributes["perm"] = ir.AttrInt64s("perm", [1, 0])  # type: ignore[union-attr]
            node.replace_input_with(1, copy)
            return
        if turned is not None and turned.op_type == "Transpose":
            turned.prepend(made.producer())  # type: ignore[arg-type]
            turned.replace_input_with(0, made)
        else:
            node.replace_input_with(1, made)
        self._remove_unused(layer.weight)

    def _bias(self, node: ir.Node, scales: np.ndarray) -> None:
        """Store the bias of a layer as int32, in the units of its sums.

        A row that is added to a product of rank 3 or more gets that rank instead: onnxruntime would
        make a Gemm in float32 of the product and a row of rank 1, before it looks for integers.
        """
        found = _bias_of(node, len(scales))
        if found is None:
            return
        reader, index, bias = found
        assert bias.const_value is not None
        shape = node.outputs[0].shape
        if reader is not node and shape is not None and len(shape) > 2:
            row = bias.const_value.numpy().reshape((1,) * (len(shape) - 1) + (-1,))
            reader.replace_input_with(index, self._initializer(f"{bias.name}.row", row))
            self._remove_unused(bias)
            return
        values = np.rint(bias.const_value.numpy().astype(np.float64) / scales)
        limits = np.iinfo(np.int32)
        codes = np.clip(values, limits.min, limits.max).astype(np.int32)
        name = bias.name or ""
        inputs = [
            self._initializer(f"{name}.int32", codes),
            self._initializer(f"{name}.scales", scales.astype(np.float32)),
        ]
        made = self._node("DequantizeLinear", inputs, f"{name}.dequantized", reader, 0)
        reader.replace_input_with(index, made)
        self._remove_unused(bias)

    def _remove_unused(self, value: ir.Value) -> None:
        if not value.uses():
            self.graph.initializers.pop(value.name or "", None)

    def _activation(self, value: ir.Value) -> tuple[ir.Value, np.ndarray]:
        """Return a value rounded to 8 bits, and its scale."""
        if value not in self._quantized:
            readers = list(value.uses())
            low, high = self.ranges.get(value.name or "", (0.0, 0.0))  # always empty: no range
            low, high = min(low, 0.0), max(high, 0.0)
            scale = np.float32((high - low) / _STEPS or 1.0)
            zero = np.uint8(np.clip(np.rint(-low / scale), 0, _STEPS))
            name, first = value.name or "", readers[0].node
            ends = [
                self._initializer(f"{name}.scale", np.asarray(scale)),
                self._initializer(f"{name}.zero_point", np.asarray(zero)),
            ]
            codes = self._node("QuantizeLinear", [value, *ends], f"{name}.quantized", first)
            rounded = self._node("DequantizeLinear", [codes, *ends], f"{name}.rounded", first)
            self._quantized[value] = self._quantized[rounded] = rounded, np.asarray(scale)
        return self._quantized[value]

    def _round_result(self, value: ir.Value) -> None:
        """Let all readers of a result read it rounded."""
        readers = [(use.node, use.idx) for use in value.uses()]
        if value.is_graph_output() or not readers:
            return
        rounded, _ = self._activation(value)
        maker = rounded.producer()
        for node, index in readers:
            if node.op_type != "QuantizeLinear" and node is not maker:
                node.replace_input_with(index, rounded)

    def _node(
        self, op: str, inputs: list[ir.Value], name: str, before: ir.Node, axis: int | None = None
    ) -> ir.Value:
        attributes = {} if axis is None else {"axis": axis}
        made = ir.node(op, inputs, attributes, name=self._unused(name))
        made.metadata_props.update(before.metadata_props)
        made.outputs[0].name = made.name
        before.prepend(made)
        return made.outputs[0]

    def _initializer(self, name: str, array: np.ndarray) -> ir.Value:
        name = self._unused(name)
        value = ir.val(name, const_value=ir.tensor(array, name=name))
        self.graph.register_initializer(value)
        return value

    def _unused(self, name: str) -> str:
        taken = {*self.graph.initializers, *(node.name for node in self.graph)}
        return next(
            n for i in range(len(taken) + 2) if (n := f"{name}.{i}" if i else name) not in taken
        )
