"""Weights of convolutions in few bits: a composite dequantizes them when the file is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from coreai_onnx.composites.declaration import DOMAIN
from coreai_onnx.model.provenance.debug_info import SCOPE
from coreai_onnx.model.standard.op_schemas import ONNX_DOMAINS
from coreai_onnx.quantization.weights.packed_weights import PackedWeight
from coreai_onnx.quantization.weights.products import (
    FLOATS,
    MatrixWeight,
    Product,
    Products,
    origin,
    searched,
)
from coreai_onnx.quantization.weights.rewriting import FewBitFunctions
from coreai_onnx.quantization.weights.scheme import CALIBRATED, Scheme

_OPS = ("Conv", "ConvTranspose")
_MATRIX = 2


@dataclass(frozen=True, eq=False)
class ConvolutionWeight(MatrixWeight):
    """The weight of convolutions, as a matrix with a row for each index of its first axis.

    Attributes:
        kernel: Number of elements of a kernel, which share a scale.
    """

    kernel: int = 1

    def fitted(self, scheme: Scheme) -> Scheme | str:
        """Return a scheme whose groups are whole kernels, near the size that is asked for.

        Methods that need the inputs of products become ``"hqq"``.

        Returns:
            The scheme, or the reason why no group size fits.
        """
        channels = self.shape[1] // self.kernel
        sizes = [n * self.kernel for n in range(1, channels + 1) if channels % n == 0]
        whole = [size for size in sizes if size * scheme.bits % 8 == 0]
        if not whole:
            return f"no number of its kernels fills whole bytes with codes of {scheme.bits} bits"
        preferred = scheme.group_size or self.shape[1]
        # By the ratio of sizes: 32 is as far from 64 as 128 is.
        size = min(whole, key=lambda n: abs(math.log(n / preferred)))
        method = "hqq" if scheme.method in CALIBRATED else scheme.method
        return replace(scheme, group_size=size, method=method, activation_bits=0)


def convolution_weights(products: Products) -> list[ConvolutionWeight]:
    """Return the constant weights that only convolutions read, also in functions, in order."""
    readers: dict[ir.Value, list[Product]] = {}
    for root in searched(products.model):
        for node in root.all_nodes():
            if node.op_type in _OPS and node.domain in ONNX_DOMAINS:
                for value, dtype in _constants(products, node.inputs[1]):
                    product = Product(
                        node, node.inputs[1] or value, by_rows=True, dtype=dtype, root=root
                    )
                    readers.setdefault(value, []).append(product)
    return [
        _weight(value, users)
        for value, users in readers.items()
        if _only_convolutions_read(products, value)
    ]


def _constants(
    products: Products, value: ir.Value | None
) -> Iterator[tuple[ir.Value, ir.DataType]]:
    """Yield the initializers of the main graph that a weight may be, and the dtype after Casts."""
    if value is None:
        return
    source, maker = origin(value), value.producer()
    if products.owner(source) is not None:
        for argument in products.arguments(source):
            yield from _constants(products, argument)
        return
    # A caller may replace an initializer that is an input: its value is not known.
    tensor = source.const_value
    is_plain = source.graph is products.model.graph and not source.is_graph_input()
    if is_plain and tensor is not None and tensor.dtype in FLOATS and len(tensor.shape) > _MATRIX:
        to = tensor.dtype if maker is None else ir.DataType(maker.attributes["to"].as_int())
        yield source, to


def _only_convolutions_read(products: Products, value: ir.Value) -> bool:
    # Another reader needs the floats, so that the file would hold the weight twice.
    if value.is_graph_output():
        return False
    for use in value.uses():
        node = use.node
        called = products.model.functions.get(node.op_identifier())
        if called is not None:
            allowed = _only_convolutions_read(products, called.inputs[use.idx])
        elif node.op_type == "Cast" and origin(node.outputs[0]) is origin(value):
            allowed = _only_convolutions_read(products, node.outputs[0])
        else:
            allowed = node.op_type in _OPS and node.domain in ONNX_DOMAINS and use.idx == 1
        if not allowed:
            return False
    return True


def _weight(value: ir.Value, readers: list[Product]) -> ConvolutionWeight:
    tensor = value.const_value
    assert tensor is not None
    rows, channels, *kernel = tensor.shape.numpy()
    shape = ir.Shape([rows, channels * math.prod(kernel)])

    def matrix() -> ir.TensorProtocol:
        return ir.tensor(tensor.numpy().reshape(shape.numpy()), dtype=tensor.dtype)

    # Models are planned before they are packed: the reshaped copies are not needed at once.
    lazy = ir.LazyTensor(matrix, dtype=tensor.dtype, shape=shape, name=value.name)
    paths = dict.fromkeys(_path(value, reader) for reader in readers)
    return ConvolutionWeight(value, lazy, tuple(readers), tuple(paths), math.prod(kernel))


def _path(value: ir.Value, reader: Product) -> str:
    """Return the module path; weights in functions, which belong to all calls, have their names."""
    scope = reader.node.metadata_props.get(SCOPE) if isinstance(reader.root, ir.Graph) else None
    return scope or (value.name or "").removesuffix(".weight")


def rewrite_convolutions(
    model: ir.Model, packed: Mapping[MatrixWeight, PackedWeight], bodies: FewBitFunctions
) -> None:
    """Replace the weights of convolutions by calls that dequantize them, in place.

    Args:
        model: The model.
        packed: The packed weights; those of products are left out.
        bodies: The functions of the model.
    """
    for weight, done in packed.items():
        if isinstance(weight, ConvolutionWeight):
            _replace(model, bodies, weight, done)


def _replace(
    model: ir.Model, bodies: FewBitFunctions, weight: ConvolutionWeight, done: PackedWeight
) -> None:
    graph, value, dtype = model.graph, weight.value, weight.products[0].dtype
    assert value.const_value is not None
    shape = [int(dim) for dim in value.const_value.shape.numpy()]
    name, parts, more = _composite(done, shape)
    attributes: dict[str, int | list[int]] = {"bits": done.scheme.bits, "shape": shape, **more}
    op_type = bodies(name, dtype, list(parts), attributes)
    function = model.functions[DOMAIN, op_type, ""]
    inputs = [
        _stored(graph, value, declared.name or "", parts, dtype) for declared in function.inputs
    ]
    node = ir.node(op_type, inputs, attributes, domain=DOMAIN, name=f"{value.name}.dequantized")
    node.metadata_props.update(weight.products[0].node.metadata_props)
    dense = node.outputs[0]
    dense.name, dense.type, dense.shape = node.name, ir.TensorType(dtype), ir.Shape(shape)
    # The first place of the graph precedes every reader, those in loops and branches as well.
    casts = [cast for value in inputs if value and (cast := value.producer())]
    graph.insert_before(graph[0], [*casts, node])
    # Calls pass on the dense weight, so that functions with convolutions stay as they are.
    for use in list(value.uses()):
        use.node.replace_input_with(use.idx, dense)
    graph.initializers.pop(value.name or "", None)
    graph.opset_imports.setdefault(DOMAIN, 1)


def _composite(
    done: PackedWeight, shape: list[int]
) -> tuple[str, dict[str, np.ndarray], dict[str, int]]:
    """Return the composite of a weight, its inputs, and its attributes besides bits and shape."""
    # A group is whole kernels: its scale broadcasts over the axes of the kernel.
    grid = (*done.scales.shape, *(1 for _ in shape[2:]))
    scales, codes = done.scales.reshape(grid), done.codes.reshape(-1)
    if done.palette is not None:
        lut = done.palette.reshape(*(1 for _ in shape), -1, 1)
        return "lut_to_dense", {"lut": lut, "indices": codes, "scale": scales}, {"axis": 0}
    parts = {"scale": scales, "codes": codes}
    if done.zero_points is None:
        return "blockwise_shift_scale", parts, {"minimum": -(1 << (done.scheme.bits - 1))}
    zeros = {"zero_point": done.zero_points.reshape(grid)}
    return "blockwise_shift_scale", {**parts, **zeros}, {"minimum": 0}


def _stored(
    graph: ir.Graph,
    weight: ir.Value,
    part: str,
    parts: Mapping[str, np.ndarray],
    dtype: ir.DataType,
) -> ir.Value | None:
    """Add a part of a weight as an initializer; floating ones are cast to the weight's dtype."""
    array = parts.get(part)
    if array is None:
        return None
    name = f"{weight.name}.{part}"
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    if value.dtype not in FLOATS or value.dtype == dtype:
        return value
    # The result of the composite has the dtype of its scales, and must have that of the weight.
    cast = ir.node("Cast", [value], {"to": int(dtype)}, name=f"{name}.Cast")
    result = cast.outputs[0]
    result.name, result.type, result.shape = cast.name, ir.TensorType(dtype), value.shape
    return result
