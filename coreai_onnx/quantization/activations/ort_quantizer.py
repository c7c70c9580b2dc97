"""A quantizer for torchao's PT2E that annotates what onnxruntime computes on integers on CPUs."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch.fx import GraphModule, Node

from coreai_onnx.errors import StagingError

try:
    from torchao.quantization.pt2e.quantizer import (
        QuantizationAnnotation,
        Quantizer,
        SharedQuantizationSpec,
    )

    from coreai_onnx.quantization.activations.pt2e_specs import Specs
except ImportError as error:
    raise StagingError(
        f"OrtQuantizer needs torchao, which cannot be imported: {error}\n"
        "  install it: pip install --no-deps torchao"
    ) from error

aten = torch.ops.aten
_KEY = "quantization_annotation"
"""Where torchao looks for the annotation of a node."""
CONVOLUTIONS = (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
_NORMS = (aten.batch_norm.default,)
_CLAMPS = (
    *(aten.relu.default, aten.relu_.default, aten.relu6.default),
    *(aten.hardtanh.default, aten.hardtanh_.default),
)
"""Activations that become a part of the quantization that follows them."""
_ELEMENTWISE = (
    *(aten.add.Tensor, aten.add_.Tensor, aten.mul.Tensor, aten.mul_.Tensor),
    *(aten.sigmoid.default, aten.leaky_relu.default, aten.leaky_relu_.default),
    *(aten.avg_pool2d.default, aten.adaptive_avg_pool2d.default),
)
"""Operators with a kernel on integers, whose result has a range of its own."""
_MOVES = (
    *(aten.max_pool2d.default, aten.flatten.using_ints, aten.reshape.default, aten.view.default),
    *(aten.permute.default, aten.transpose.int, aten.squeeze.dim, aten.unsqueeze.default),
    *(aten.slice.Tensor, aten.cat.default, aten.dropout.default, aten.contiguous.default),
)
"""Operators whose result has the scale of their inputs."""


class OrtQuantizer(Quantizer):
    """Annotates a program for onnxruntime's integer kernels on CPUs.

    Static, the default: convolutions and linear layers have uint8 activations and int8 weights with
    a scale per output channel, and an int32 bias where the kernel takes one. ReLU and other clamps
    become a part of the convolution before them. Between quantized convolutions, sums, products,
    poolings, concatenations and views stay on integers. Other operators stay in float32.

    Dynamic: linear layers only; the range of an activation is that of each input, so that no
    calibration is needed.

    ```python
    prepared = prepare_pt2e(torch.export.export(model, args).module(), OrtQuantizer())
    prepared(*args)  # for some inputs that are typical
    program = coreai_onnx.convert(convert_pt2e(prepared), args)
    ```

    Args:
        dynamic: Whether activations are quantized dynamically.
        training: Whether it is used with ``prepare_qat_pt2e``.
        reduce_range: Whether weights have 7 bits, for which onnxruntime's fastest products are
            exact on every CPU. With 8 bits, those of x86 CPUs without VNNI saturate: the weights
            are written as uint8, whose products are exact, but slower there and with AMX.
        skip: Paths of modules that stay in float32, ``"lm_head"``, with all that they contain.

    Raises:
        StagingError: When the file is imported, if torchao is not installed.
    """

    def __init__(
        self,
        *,
        dynamic: bool = False,
        training: bool = False,
        reduce_range: bool = True,
        skip: Iterable[str] = (),
    ) -> None:
        """Choose a configuration."""
        super().__init__()
        self.specs = Specs(dynamic=dynamic, training=training, reduced=reduce_range)
        self.skip = frozenset([skip] if isinstance(skip, str) else skip)

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the nodes of an exported program, in the order in which they are computed.

        Raises:
            StagingError: If no module has a path of ``skip``.
        """
        nodes = [node for node in model.graph.nodes if node.op == "call_function"]
        self._check_skipped(nodes)
        # Operators on integers look at the annotations of their operands, so operands come first.
        for node in nodes:
            if self._is_skipped(node):
                continue
            if node.target is aten.linear.default:
                # The scale of an int32 bias is the product of both scales; a dynamic one is unknown
                # before the run.
                self._product(node, with_bias=not self.specs.dynamic)
            elif self.specs.dynamic:
                continue
            elif node.target in CONVOLUTIONS:
                self._convolution(node)
            elif node.target in _ELEMENTWISE:
                self._elementwise(node)
            elif node.target in _MOVES:
                self._move(node)
        return model

    def validate(self, model: GraphModule) -> None:
        """Accept every annotation, because this class made it."""

    # ------------------------------------------------------------------ operators
    def _convolution(self, node: Node) -> None:
        self._product(node, with_bias=not self.specs.training)
        # A convolution, its norm and its clamp become one kernel: only the last result is rounded.
        last = node
        for targets in ((_NORMS if self.specs.training else ()), _CLAMPS):
            following = _only_user(last)
            if following is not None and following.target in targets:
                last = following
        self._set_output(last)

    def _product(self, node: Node, *, with_bias: bool) -> None:
        activation, weight = node.args[0], node.args[1]
        assert isinstance(activation, Node)
        assert isinstance(weight, Node)
        specs = {activation: self.specs.activation(), weight: self.specs.weight()}
        bias = node.args[2] if len(node.args) > 2 else None
        if with_bias and isinstance(bias, Node):
            specs[bias] = self.specs.bias(node, activation, weight, _parameter(bias))
        node.meta[_KEY] = QuantizationAnnotation(input_qspec_map=specs, _annotated=True)

    def _elementwise(self, node: Node) -> None:
        operands = _operands(node)
        # Beside an operand in float32 there is no integer kernel; rounding would only lose
        # accuracy.
        if not operands or not all(map(_is_quantized, operands)):
            return
        node.meta[_KEY] = QuantizationAnnotation(
            input_qspec_map={x: self.specs.activation() for x in operands}, _annotated=True
        )
        following = _only_user(node)
        clamps = following is not None and following.target in _CLAMPS
        self._set_output(following if clamps and following is not None else node)

    def _move(self, node: Node) -> None:
        operands = _operands(node)
        if not operands or not all(map(_is_quantized, operands)):
            return
        first = operands[0]
        specs = {first: self.specs.activation()}
        # onnxruntime removes the QuantizeLinear and DequantizeLinear around such an operator only
        # if both have the same scale and zero point.
        shared = SharedQuantizationSpec((first, node))
        specs.update(dict.fromkeys(operands[1:], shared))
        node.meta[_KEY] = QuantizationAnnotation(
            input_qspec_map=specs, output_qspec=shared, _annotated=True
        )

    def _set_output(self, node: Node) -> None:
        annotation = node.meta.setdefault(_KEY, QuantizationAnnotation(_annotated=True))
        annotation.output_qspec = self.specs.activation()

    # ------------------------------------------------------------------ skipped modules
    def _is_skipped(self, node: Node) -> bool:
        return any(path in self.skip for path in _paths(node))

    def _check_skipped(self, nodes: list[Node]) -> None:
        paths = {path for node in nodes for path in _paths(node)}
        unknown = sorted(self.skip - paths)
        if unknown:
            raise StagingError(
                f"skip names no module of the program: {', '.join(unknown)}\n"
                "  give paths of modules as named_modules() of the model lists them"
            )


def _parameter(node: Node) -> torch.Tensor | None:
    """Return the parameter or buffer that a node reads; None for a computed value."""
    if node.op != "get_attr" or node.graph.owning_module is None:
        return None
    value = operator.attrgetter(str(node.target))(node.graph.owning_module)
    return value if isinstance(value, torch.Tensor) else None


def _paths(node: Node) -> set[str]:
    """Return the paths of the modules that contain a node."""
    stack = node.meta.get("nn_module_stack") or {}
    # Strict export, by dynamo, puts these prefixes before the paths; the non-strict one does not.
    return {path.removeprefix("L['self'].").removeprefix("L__self__") for path, _ in stack.values()}


def _operands(node: Node) -> list[Node]:
    """Return the tensors among the arguments, including those of a list."""
    first = node.args[0]
    arguments = first if isinstance(first, list | tuple) else node.args
    return [x for x in arguments if isinstance(x, Node)]


def _is_quantized(node: Node) -> bool:
    annotation = node.meta.get(_KEY)
    # Linear layers have annotated operands, but return floats.
    return annotation is not None and annotation.output_qspec is not None


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None
