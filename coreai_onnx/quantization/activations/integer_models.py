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
from coreai_onnx.model.interface import dtype_name
from coreai_onnx.model.inventory import weights
from coreai_onnx.model.provenance.debug_info import SCOPE
from coreai_onnx.model.standard.op_schemas import ONNX_DOMAINS
from coreai_onnx.passes import run_passes
from coreai_onnx.passes.layout.decompose_dequantization import decompose_dequantization
from coreai_onnx.passes.layout.keep_float_layers import keep_float_layers
from coreai_onnx.quantization.activations.ranges import MINMAX, Clipping, Range, value_ranges
from coreai_onnx.quantization.calibration import Feed
from coreai_onnx.quantization.report import (
    KeptWeight,
    QuantizationReport,
    Quantized,
    QuantizedLayer,
)
from coreai_onnx.quantization.rules import Rules
from coreai_onnx.quantization.weights.packed_weights import decibels
from coreai_onnx.quantization.weights.products import Products, origin
from coreai_onnx.quantization.weights.rewriting import (
    refuse_few_bits,
    refuse_integers,
    remove_makers,
    unused,
)
from coreai_onnx.quantization.weights.scheme import Scheme

LARGEST = 64
"""The largest magnitude of a quantized weight. AVX2 adds pairs of products of 8 bits in 16 bits,
which cannot overflow with weights of 7 bits
(https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html)."""
_WHOLE = 127
"""The same beside inputs of 16 bits, with which onnxruntime computes in float32."""
_OLDEST = {8: 13, 16: 21}
"""The first opset in which DequantizeLinear has an axis, and in which it takes 16 bits."""
_SMALLEST = np.float32(2.0**-96)
"""The least scale of a value: products with scales of weights stay normal numbers of float32."""
_BIAS = 1 << 30
"""The largest magnitude of a bias in int32: the products are added to it, and must not overflow."""
_BYTE, _MATRIX = 8, 2
_COMPUTES = "computes in "
_EXACT = (decompose_dequantization, keep_float_layers)
"""Passes without which onnxruntime would quantize more than what was asked for."""


@dataclass(frozen=True, eq=False)
class _IntegerLayer:
    """A product or a convolution of the main graph.

    Attributes:
        node: ``MatMul``, ``Gemm`` or ``Conv``.
        weight: The initializer.
        axis: The axis of its outputs.
        result: The value whose range is quantized; None for products, whose result stays float.
        turned: Whether the node reads the transpose of the weight.
        dtype: The dtype that it computes in.
    """

    node: ir.Node
    weight: ir.Value
    axis: int
    result: ir.Value | None
    turned: bool = False
    dtype: ir.DataType = ir.DataType.FLOAT

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
    models: Mapping[str, ir.Model],
    rules: Rules,
    calibration: Mapping[str, Iterable[Feed]],
    *,
    bits: int = 8,
    clipping: Clipping = MINMAX,
) -> dict[str, Quantized]:
    """Quantize the products and convolutions of the main graphs of models, in copies.

    Inputs are uint8 or uint16 with a zero point, weights int8 with a scale for each output.

    Args:
        models: The models by entrypoint.
        rules: Those that select no scheme leave layers out.
        calibration: The inputs of calls by entrypoint.
        bits: Size of an input, 8 or 16.
        clipping: Which values are outside of the range of an input.

    Raises:
        QuantizationError: There is no data for a model, or nothing to quantize, or a weight is not
            finite.
    """
    if missing := [name for name in models if name not in calibration]:
        names = ", ".join(f"{name!r}: […]" for name in models)
        raise QuantizationError(
            f"activations=True: the entrypoint {missing[0]} has no calibration data\n"
            f"  give calibration={{{names}}}"
        )
    return {
        name: _quantized(model, rules, calibration[name], bits, clipping)
        for name, model in models.items()
    }


def _quantized(
    model: ir.Model, rules: Rules, feeds: Iterable[Feed], bits: int, clipping: Clipping
) -> Quantized:
    if model.graph.opset_imports.get("", 1) < _OLDEST[bits]:
        raise QuantizationError(f"activations of {bits} bits need opset {_OLDEST[bits]} or later")
    refuse_few_bits(model)  # they have no float weight to round
    copy = model.clone()  # an error must leave the program as it is
    layers, kept = _chosen(copy, rules)
    if not layers:
        if not kept:
            refuse_integers(model)  # otherwise the reasons in `kept` say more
        raise QuantizationError(_nothing(kept))
    values = [layer.node.inputs[0] for layer in layers] + [layer.result for layer in layers]
    names = dict.fromkeys(v.name or "" for v in values if v is not None)
    ranges = value_ranges(model, names, feeds, clipping=clipping, levels=1 << bits)
    writer = _IntegerWriter(copy, ranges, np.dtype(np.uint8 if bits == _BYTE else np.uint16))
    rows = [writer.write(layer) for layer in layers]
    run_passes(copy, _EXACT)
    report = QuantizationReport(tuple(rows), tuple(kept), weights(model)[1], weights(copy)[1])
    return Quantized(copy, report)


def _chosen(model: ir.Model, rules: Rules) -> tuple[list[_IntegerLayer], list[KeptWeight]]:
    layers, kept = [], []
    for layer in _layers(model):
        if rules.leaves_out(layer.path, layer.weight.name or ""):
            reason = "skipped by a pattern"
        elif layer.dtype != ir.DataType.FLOAT:
            reason = f"{_COMPUTES}{dtype_name(layer.dtype.name)}"
        else:
            layers.append(layer)
            continue
        kept.append(KeptWeight(layer.path, layer.shape, layer.array.nbytes, reason))
    return layers, kept


def _nothing(kept: list[KeptWeight]) -> str:
    message = "there is nothing to quantize: no MatMul, Gemm or Conv in float32 with weight"
    for one in kept:
        if one.reason.startswith(_COMPUTES):
            return (
                f"{message}\n  {one.path} {one.reason}: quantize the float32 model "
                "(module.float()), and call convert_dtype after that"
            )
    return message


def _layers(model: ir.Model) -> list[_IntegerLayer]:
    """Return the layers in node order, without those in functions and subgraphs."""
    layers = {}
    for p in Products(model).products:
        node = p.node
        if node.graph is model.graph and not (p.is_lookup or p.is_gathered):
            turned = p.by_rows != bool(node.attributes.get_int("transB", 0))
            layers[node] = _IntegerLayer(node, p.weight, 1 - p.by_rows, None, turned, p.dtype)
    for node in model.graph:
        if node.op_type == "Conv" and node.domain in ONNX_DOMAINS:
            read = node.inputs[1]
            weight = None if read is None else origin(read)
            tensor = None if weight is None else weight.const_value
            if read is None or weight is None or tensor is None or weight.is_graph_input():
                continue
            if _constant_bias(node):
                cast = read.producer()  # the weight may be stored in 16 bits
                dtype = ir.DataType(cast.attributes["to"].as_int()) if cast else tensor.dtype
                layers[node] = _IntegerLayer(node, weight, 0, _conv_result(node), dtype=dtype)
    return [layers[node] for node in model.graph if node in layers]


def _constant_bias(node: ir.Node) -> bool:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    source = None if bias is None else origin(bias)
    return source is None or (source.const_value is not None and not source.is_graph_input())


def _bias_of(node: ir.Node, outputs: int) -> tuple[ir.Node, int, ir.Value] | None:
    """Return the constant bias of a layer: the node that reads it, the input, and the value."""
    reader, index = node, 2
    if node.op_type == "MatMul":
        readers = list(node.outputs[0].consumers())
        if len(readers) != 1 or readers[0].op_type != "Add" or node.outputs[0].is_graph_output():
            return None
        reader = readers[0]
        index = 1 if reader.inputs[0] is node.outputs[0] else 0
    addend = reader.inputs[index] if len(reader.inputs) > index else None
    bias = None if addend is None else origin(addend)
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


def _keeps_floats(reader: ir.Node, node: ir.Node) -> bool:
    """Whether the bias of a product stays float32 and gets the rank of the product.

    onnxruntime would make a Gemm in float32 of a product of rank 3 or more and a row of rank 1,
    before it looks for integers.
    """
    shape = node.outputs[0].shape
    return reader is not node and shape is not None and len(shape) > _MATRIX


def _least_scales(bias: ir.Value, step: np.ndarray) -> np.ndarray:
    """Return the least scales of a weight with which the bias fits into int32.

    The inputs are small then: what the weight loses is small beside the bias.
    """
    assert bias.const_value is not None
    values = np.abs(bias.const_value.numpy().astype(np.float64))
    return (values / (_BIAS * np.float64(step))).astype(np.float32)


class _IntegerWriter:
    """Inserts QuantizeLinear and DequantizeLinear."""

    def __init__(self, model: ir.Model, ranges: Mapping[str, Range], dtype: np.dtype) -> None:
        self.graph, self.ranges, self.dtype = model.graph, ranges, dtype
        self._quantized: dict[ir.Value, tuple[ir.Value, np.ndarray]] = {}

    def write(self, layer: _IntegerLayer) -> QuantizedLayer:
        """Quantize the inputs, the weight and perhaps the result of a layer."""
        node, array = layer.node, layer.array.astype(np.float32)
        if not np.isfinite(array).all():
            raise QuantizationError(
                f"{layer.path}: the weight {layer.weight.name!r} has values that are not finite"
            )
        x = node.inputs[0]
        assert x is not None
        rounded, step = self._activation(x)
        node.replace_input_with(0, rounded)
        others = tuple(axis for axis in range(array.ndim) if axis != layer.axis)
        largest = np.abs(array).max(axis=others, initial=0)  # initial: of an empty weight
        limit = LARGEST if self.dtype.itemsize == 1 else _WHOLE
        scales = np.where(largest > 0, largest / limit, 1).astype(np.float32)
        bias = _bias_of(node, len(scales))
        if bias is not None and not _keeps_floats(bias[0], node):
            scales = np.maximum(scales, _least_scales(bias[2], step))
        wide = np.expand_dims(scales, others)
        codes = np.clip(np.rint(array / wide), -limit, limit).astype(np.int8)
        self._weight(layer, codes, scales)
        if bias is not None:
            self._bias(*bias, node, step * scales)
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
        """Read the weight through a DequantizeLinear in place of the initializer.

        It has zero points of 0: without them, onnxruntime finds no integer product in a Gemm.
        """
        name, node = layer.weight.name or "", layer.node
        inputs = [
            self._initializer(f"{name}.int8", codes),
            self._initializer(f"{name}.scales", scales),
            self._initializer(f"{name}.zero_points", np.zeros_like(scales, np.int8)),
        ]
        dequantized = self._node(
            "DequantizeLinear", inputs, f"{name}.dequantized", node, layer.axis
        )
        if layer.turned:
            copy = self._node("Transpose", [dequantized], f"{name}.turned", node)
            copy.producer().attributes["perm"] = ir.AttrInt64s("perm", [1, 0])  # type: ignore[union-attr]
            dequantized = copy
        self._replace(node, 1, dequantized)

    def _bias(
        self, reader: ir.Node, index: int, bias: ir.Value, node: ir.Node, scales: np.ndarray
    ) -> None:
        """Store the bias of a layer as int32, in the units of its sums."""
        assert bias.const_value is not None
        shape, name = node.outputs[0].shape, bias.name or ""
        if shape is not None and _keeps_floats(reader, node):
            row = bias.const_value.numpy().astype(np.float32)
            row = row.reshape((1,) * (len(shape) - 1) + (-1,))
            self._replace(reader, index, self._initializer(f"{name}.row", row))
            return
        # float32 counts without gaps to 2**24 only, and these codes reach 2**30.
        values = np.rint(bias.const_value.numpy().astype(np.float64) / scales)
        codes = np.clip(values, -_BIAS, _BIAS).astype(np.int32)
        inputs = [
            self._initializer(f"{name}.int32", codes),
            self._initializer(f"{name}.scales", scales.astype(np.float32)),
        ]
        dequantized = self._node("DequantizeLinear", inputs, f"{name}.dequantized", reader, 0)
        self._replace(reader, index, dequantized)

    def _replace(self, node: ir.Node, index: int, value: ir.Value) -> None:
        """Let a node read a value instead of a constant, and remove what is no longer used."""
        old = node.inputs[index]
        assert old is not None
        constant = old
        while (maker := constant.producer()) is not None and maker.inputs[0] is not None:
            constant = maker.inputs[0]
        node.replace_input_with(index, value)
        remove_makers(old)
        if not constant.uses() and not constant.is_graph_output():
            self.graph.initializers.pop(constant.name or "", None)

    def _activation(self, value: ir.Value) -> tuple[ir.Value, np.ndarray]:
        """Return a value rounded to 8 bits, and its scale."""
        if value not in self._quantized:
            readers, steps = list(value.uses()), np.iinfo(self.dtype).max
            low, high = self.ranges[value.name or ""]
            low, high = min(low, 0.0), max(high, 0.0)  # padding and Relu need an exact 0
            scale = np.maximum(np.float32((high - low) / steps or 1.0), _SMALLEST)
            zero = np.clip(np.rint(-low / scale), 0, steps).astype(self.dtype)
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
        readers = [(use.node, use.idx) for use in value.uses()]  # before QuantizeLinear joins them
        if value.is_graph_output() or not readers:
            return
        rounded, _ = self._activation(value)  # its QuantizeLinear reads the value itself
        maker = rounded.producer()
        for node, index in readers:
            if node.op_type != "QuantizeLinear" and node is not maker:
                node.replace_input_with(index, rounded)

    def _node(
        self, op: str, inputs: list[ir.Value], name: str, before: ir.Node, axis: int | None = None
    ) -> ir.Value:
        attributes = {} if axis is None else {"axis": axis}
        node = ir.node(op, inputs, attributes, name=self._unused(name))
        node.metadata_props.update(before.metadata_props)
        node.outputs[0].name = node.name
        before.prepend(node)
        return node.outputs[0]

    def _initializer(self, name: str, array: np.ndarray) -> ir.Value:
        name = self._unused(name)
        value = ir.val(name, const_value=ir.tensor(array, name=name))
        self.graph.register_initializer(value)
        return value

    def _unused(self, name: str) -> str:
        return unused(name, {*self.graph.initializers, *(node.name for node in self.graph)}, 1)
