"""Models with many calls of one composite, each on inputs of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from coreai_onnx.bodies import composite_functions
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.lower import LoweredProgram
from coreai_onnx.lower.build.builder import OpBuilder
from coreai_onnx.lower.build.composite_calls import CompositeCalls
from coreai_onnx.lower.build.scope import Names, Scope
from coreai_onnx.lower.build.values import ir_dtype, set_dims
from tests.support.composite_calls import Case


def model_of(calls: Sequence[tuple[Case, torch.dtype]], opset: int) -> tuple[ir.Model, list[Any]]:
    """Return a model that makes these calls one after the other, and its flat inputs."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main")
    names, made, flat = Names(), CompositeCalls(), []
    op = OpBuilder(Scope(graph, names), opset, made)
    for index, (case, dtype) in enumerate(calls):
        tensors = case.inputs(dtype)
        flat += [t for t in tensors if t is not None]
        values = [None if t is None else _input(graph, names, t) for t in tensors]
        attributes = dict(case.attributes)
        first = tensors[0]
        if case.composite == "scaled_dot_product_attention" and first is not None:
            attributes.setdefault("scale", first.shape[-1] ** -0.5)
        results = op.composite_outputs(case.composite, values, **attributes)
        for output, wanted in zip(results, case.expected_outputs(tensors), strict=True):
            output.name = names.unique(f"result_{index}")
            output.shape = ir.Shape([f"{output.name}_{i}" for i in range(wanted.ndim)])
            graph.outputs.append(output)
    model = LoweredProgram(graph, names).model(composite_functions(made.calls, opset), "main")
    return model, flat


def expected(calls: Sequence[tuple[Case, torch.dtype]]) -> list[torch.Tensor]:
    """Return every output of the references, in the order of the model's outputs."""
    return [x for case, dtype in calls for x in case.expected_outputs(case.inputs(dtype))]


def _input(graph: ir.Graph, names: Names, tensor: torch.Tensor) -> ir.Value:
    value = ir.Value(name=names.unique("input"))
    value.dtype = ir_dtype(tensor.dtype)
    set_dims(value, tuple(tensor.shape))
    graph.inputs.append(value)
    return value


def declared(name: str) -> frozenset[str]:
    """Return every op type of a composite."""
    return frozenset(COMPOSITES[name].op_types())
