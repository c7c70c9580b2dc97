"""Inputs of a decoder for adapters: a product of low rank beside each linear layer.

x ─MatMul(weight)─ y          becomes          x ─MatMul(weight)─ y ────────────── Add ─
                                               └─MatMul(lora_A)── MatMul(lora_B) ──┘
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.model.interface import LORA_A, LORA_B
from coreai_onnx.model.metadata import RANGES
from coreai_onnx.model.provenance.debug_info import CLASS, SCOPE

_ROOT = "model."
"""The path of the model of transformers in the module that is exported."""


def add_adapter_inputs(model: ir.Model, layers: Sequence[str] | None) -> None:
    """Add optional inputs for the factors of adapters; by default they have rank 0.

    ``lora_A`` is ``[1 or batch, in_features, rank]`` and ``lora_B`` ``[1 or batch, rank,
    out_features]``: those of peft transposed, so that no call transposes them, and with the scale
    of the adapter in ``lora_B``. That has one column where the rank is 0; the range of the dim has
    the number of the layer's.

    Args:
        model: The converted decoder, before any pass has fused its layers; changed in place.
        layers: The last names of the linear layers to adapt, ``["q_proj", "v_proj"]``; None
            adapts all of them but the head.

    Raises:
        ModelSourceError: If the decoder has no such layer.
    """
    batch = model.graph.inputs[0].shape
    rows = None if batch is None else batch[0]
    products = [(path, node) for node in model.graph if (path := _layer(node, rows))]
    names = {path: path.rpartition(".")[2] for path, _ in products}
    # The head is not in a block, and adapters of all layers leave it out: "all-linear" of peft.
    chosen = {name for path, name in names.items() if "." in path}
    if layers is not None:
        chosen = {layers} if isinstance(layers, str) else set(layers)
        if unknown := sorted(chosen.difference(names.values())):
            raise ModelSourceError(
                f"lora: the model has no linear layer {unknown[0]!r:.80}; "
                f"there are {', '.join(sorted(set(names.values()))) or 'none'}"
            )
    if not chosen:
        raise ModelSourceError("lora: the model has no linear layers that adapters can change")
    ranges = json.loads(model.metadata_props.get(RANGES, "{}"))
    for path, product in products:
        if names[path] in chosen:
            _add_product(model.graph, path, product, ranges)
    model.metadata_props[RANGES] = json.dumps(ranges)


def _layer(node: ir.Node, rows: int | ir.SymbolicDim | None) -> str:
    """Return the path of the layer whose input a node multiplies by the weight; empty for others.

    The order of operators is that of the lowering of ``aten.linear``: Transpose, MatMul, Add. A
    layer that reads the tokens of all rows in one axis, as routers of experts do, is left out: it
    cannot have an adapter for each row.
    """
    props = node.metadata_props
    if node.op_type != "MatMul" or props.get(CLASS) != "Linear":
        return ""
    transpose = node.inputs[1].producer() if node.inputs[1] is not None else None
    weight = transpose.inputs[0] if transpose is not None else None
    if weight is None or not weight.is_initializer():
        return ""
    shape = node.outputs[0].shape
    has_rows = shape is not None and len(shape) == 3 and shape[0] == rows
    return props[SCOPE].removeprefix(_ROOT) if has_rows else ""


def _last(product: ir.Node) -> ir.Node:
    """Return the node with the result of a layer: the sum with its bias, if it has one."""
    (result,) = product.outputs
    users = (user for user in result.consumers() if user.op_type == "Add")
    scope = product.metadata_props[SCOPE]
    return next((user for user in users if user.metadata_props.get(SCOPE) == scope), product)


def _add_product(
    graph: ir.Graph, path: str, product: ir.Node, ranges: dict[str, dict[str, int]]
) -> None:
    last = _last(product)
    x, result = product.inputs[0], last.outputs[0]
    weight = product.inputs[1]
    assert x is not None
    assert weight is not None
    assert weight.shape is not None
    assert result.shape is not None
    features, results = weight.shape
    assert isinstance(results, int)
    # A name of its own for each layer: onnxruntime reuses memory where names of dims are equal, and
    # an adapter may have other ranks for other layers.
    rank = ir.SymbolicDim(f"{path.replace('.', '_')}_rank")
    rows = ir.SymbolicDim(None)  # a name would have to have one size, and it may be 1 or the batch
    first = _optional_input(graph, f"{path}{LORA_A}", [rows, features, rank], result)
    # Adding one column of zeros to all takes a quarter of the time of adding as many as there are.
    columns = ir.SymbolicDim(f"{path.replace('.', '_')}_columns")
    ranges[str(columns.value)] = {"min": 1, "max": results}
    second = _optional_input(graph, f"{path}{LORA_B}", [rows, rank, columns], result)
    *batch, _ = result.shape
    nodes = [ir.node("MatMul", [x, first])]
    nodes.append(ir.node("MatMul", [nodes[0].outputs[0], second]))
    nodes.append(ir.node("Add", [result, nodes[1].outputs[0]]))
    shapes = (ir.Shape([*batch, rank]), ir.Shape([*batch, columns]), result.shape)
    for node, name, shape in zip(nodes, ("lora_A", "lora_B", "lora"), shapes, strict=True):
        # A layer may be called again: the names of products must be unique, as those of results.
        node.name = node.outputs[0].name = f"{result.name}.{name}"
        node.outputs[0].type, node.outputs[0].shape = result.type, shape
        node.metadata_props.update(last.metadata_props)
    if result.is_graph_output():
        output = result.name
        result.name, nodes[2].outputs[0].name = f"{output}.without_adapter", output
    ir.convenience.replace_all_uses_with(result, nodes[2].outputs[0], replace_graph_outputs=True)
    nodes[2].replace_input_with(0, result)
    graph.insert_after(last, nodes)


def _optional_input(
    graph: ir.Graph, name: str, dims: Sequence[int | ir.SymbolicDim], like: ir.Value
) -> ir.Value:
    """Add an input with a default whose size is 1 for rows and columns and 0 for the rank.

    A layer that is called again has it already.
    """
    if name in graph.initializers:
        return graph.initializers[name]
    assert like.dtype is not None
    first, second = (dim if isinstance(dim, int) else 0 for dim in dims[1:])
    sizes = [1, first, second] if first else [1, 0, 1]
    default = ir.tensor(np.zeros(sizes, like.dtype.numpy()), name=name)
    value = ir.Value(name=name, type=like.type, shape=ir.Shape(dims), const_value=default)
    graph.inputs.append(value)
    graph.initializers[name] = value
    return value
