"""A model that is one call of a composite, with its function body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from coreai_onnx.bodies import composite_functions
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.lower import LoweredProgram
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import ir_dtype, set_dims


def composite_model(
    name: str,
    inputs: Sequence[torch.Tensor | None],
    attributes: Mapping[str, Any],
    *,
    opset: int = 23,
    constants: Sequence[int] = (),
) -> onnx.ModelProto:
    """A model of one composite call on inputs like these, named as the composite names them.

    Those at the places ``constants`` are initializers with the given contents.
    """
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main")
    names = Names()
    calls = CompositeCalls()
    op = OpBuilder(Scope(graph, names), opset, calls)
    values: list[ir.Value | None] = []
    for i, (declared, tensor) in enumerate(zip(COMPOSITES[name].inputs, inputs, strict=False)):
        if tensor is None:
            values.append(None)
            continue
        value = ir.Value(name=names.unique(declared.name))
        value.dtype = ir_dtype(tensor.dtype)
        set_dims(value, tuple(tensor.shape))
        if i in constants:
            value.const_value = TorchTensor(tensor, name=value.name)
            graph.register_initializer(value)
        else:
            graph.inputs.append(value)
        values.append(value)
    attributes = dict(attributes)
    first = inputs[0]
    assert first is not None
    if name == "scaled_dot_product_attention" and attributes.get("scale") is None:
        attributes["scale"] = first.shape[-1] ** -0.5
    for i, output in enumerate(calls.call(op, COMPOSITES[name], values, attributes)):
        output.name = f"result_{i}"
        output.dtype = output.dtype or ir_dtype(first.dtype)
        output.shape = None  # what differs from the first input's is the composite's affair
        graph.outputs.append(output)
    model = LoweredProgram(graph, names).model(composite_functions(calls.calls, opset), "main")
    return ir.to_proto(model)


def feeds_of(
    name: str, inputs: Sequence[torch.Tensor | None], *, constants: Sequence[int] = ()
) -> dict[str, torch.Tensor]:
    """The inputs that are there and no constants, by the composite's names."""
    declared = COMPOSITES[name].inputs
    return {
        d.name: tensor
        for i, (d, tensor) in enumerate(zip(declared, inputs, strict=False))
        if tensor is not None and i not in constants
    }
