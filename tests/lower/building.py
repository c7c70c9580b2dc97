"""A graph made by hand with the builder, and its numbers from onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import Value, ir_dtype, set_dims
from tests.lower.checking import run_model


class Building:
    """An empty graph.

    Attributes:
        op: Makes its nodes.
    """

    def __init__(self, opset: int = 23) -> None:
        graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main")
        self.op = OpBuilder(Scope(graph, Names()), opset)
        self.graph = graph

    def input(self, name: str, dtype: Any, dims: Sequence[Any]) -> Value:
        """Append an input; its symbolic dims can be read from it."""
        value = ir.Value(name=name, type=ir.TensorType(ir_dtype(dtype)))
        set_dims(value, dims)
        self.graph.inputs.append(value)
        self.op.scope.dims.bind_axes(value, value.meta["dims"])
        return value

    def run(self, outputs: Sequence[Value], args: Sequence[Any] = ()) -> list[np.ndarray]:
        """Return the numbers of values for the inputs."""
        self.graph.outputs[:] = [self.op.Identity(v) for v in outputs]
        return run_model(ir.Model(self.graph, ir_version=10), args)

    @property
    def op_types(self) -> list[str]:
        """The op types of the nodes, in order."""
        return [n.op_type for n in self.graph]
