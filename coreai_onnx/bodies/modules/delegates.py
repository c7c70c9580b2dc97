"""Calls of delegated parts, and the functions they call.

The function of a part is in the domain of its backend, and its body is the part. Its last input,
``processed``, holds the bytes that the backend compiled the part to. A runtime that has the
backend's op reads it; any other runtime runs the body, which does not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from coreai_onnx.bodies.body import forget_types
from coreai_onnx.bodies.modules.functions import close_body, declarations, open_body
from coreai_onnx.export.externalize.delegate_call import Delegate, delegate_of, is_number
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value, ir_dtype, set_dims
from coreai_onnx.lower.walk.context import Context
from coreai_onnx.lower.walk.location import where_of
from coreai_onnx.lower.walk.walker import Walker
from coreai_onnx.model.delegated_parts import (
    BACKEND,
    BACKEND_VERSION,
    COMPILE_SPEC,
    COMPILE_SPECS,
    INPUTS,
    PART,
    PROCESSED,
    WEIGHT_COUNT,
    WEIGHTS,
    digest_of,
)
from coreai_onnx.model.provenance.debug_info import HANDLES


@dataclass
class DelegateCalls:
    """Lowers calls of delegated parts; inner functions precede those that call them."""

    _functions: dict[str, ir.Function] = field(default_factory=dict)
    _calls: list[tuple[str, ir.Node]] = field(default_factory=list)
    _blobs: dict[str, Value] = field(default_factory=dict)

    def __call__(
        self, walker: Walker, tensors: Sequence[Value], numbers: Sequence[Any], tag: str
    ) -> list[Value]:
        """Lower one call."""
        delegate = delegate_of(tag)
        if tag not in self._functions:
            self._functions[tag] = _function(walker.context, delegate, tensors)
        function = self._functions[tag]
        # A part takes tensors and numbers in any order; the call passes them in two lists.
        rest = iter(tensors), iter([walker.op.dim(n) for n in numbers])
        inputs = [next(rest[is_number(node)]) for node in delegate.placeholders]
        outputs = walker.op.call(
            function.domain,
            function.name,
            [*inputs, self._blob(walker, delegate)],
            _attributes(delegate),
            outputs=len(function.outputs),
        )
        node = outputs[0].producer()
        assert node is not None
        if lines := _lines_by_handle(delegate):
            node.metadata_props[HANDLES] = json.dumps(lines)
        self._calls.append((tag, node))
        return outputs

    def functions(self) -> list[ir.Function]:
        """Return the functions; parts with equal bodies and bytes share one.

        Must be called after the composites inside the bodies have their final names.
        """
        kept: dict[bytes, ir.Function] = {}
        counts: dict[str, int] = {}
        for tag, function in self._functions.items():
            forget_types(function.graph)
            key = _content(function)
            if key not in kept:
                number = counts.setdefault(function.domain, 0)
                counts[function.domain] += 1
                function.name = f"{PART}{number}"
                kept[key] = function
            for made_for, node in self._calls:
                if made_for == tag:
                    node.op_type = kept[key].name
        return list(kept.values())

    def _blob(self, walker: Walker, delegate: Delegate) -> Value:
        """Return the processed bytes as a constant of the model, one for equal bytes."""
        digest = digest_of([delegate.processed_bytes])
        scope = walker.op.scope
        data = np.frombuffer(delegate.processed_bytes, np.uint8)
        # A call inside a function, which has no initializers.
        if scope.root.constants_as_nodes:
            return walker.op.const(data)
        if digest not in self._blobs:
            name = f"{delegate.backend_id}.{digest[:12]}"
            self._blobs[digest] = scope.root.constant(ir.tensor(data, name=name), name)
        return self._blobs[digest]


def _lines_by_handle(delegate: Delegate) -> dict[int, str]:
    """Return the source lines of a part's operators by their debug handles."""
    places = ((node.meta.get("debug_handle"), where_of(node).line) for node in delegate.operators)
    return {handle: line for handle, line in places if handle is not None and line}


def _attributes(delegate: Delegate) -> dict[str, Any]:
    """Return the attributes of a call, which describe the processed bytes to the backend's op."""
    weights = delegate.weights
    held = delegate.holds_weights and weights
    return {
        BACKEND_VERSION: delegate.version,
        WEIGHT_COUNT: len(weights),
        **({WEIGHTS: digest_of(_bytes_of(w) for w in weights)} if held else {}),
        **{COMPILE_SPEC + key: _readable(value) for key, value in delegate.compile_specs},
    }


def _readable(value: bytes) -> str | list[int]:
    """Return a setting as text, which ONNX requires to be UTF-8, or else as a list of bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return list(value)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(TorchTensor(tensor.detach().contiguous()).tobytes())


def _function(context: Context, delegate: Delegate, arguments: Sequence[Value]) -> ir.Function:
    """Lower the program of a part to the body of a function."""
    program = delegate.program
    inner, op = open_body(context, program, "part")
    graph = op.scope.graph
    inputs = _inputs(delegate, inner, op, arguments)
    results = Walker(inner, op, program.graph_module).walk(program.graph_module.graph, inputs)
    graph.inputs.append(ir.Value(name=op.scope.names.unique("processed")))
    close_body(op, results, ["output"] * len(results))
    function = ir.Function(
        delegate.backend_id,
        delegate.tag,
        graph=graph,
        # equal parts with other weights share the function
        attributes=declarations({**_attributes(delegate), WEIGHTS: ""}),
    )
    specs = {key: value.hex() for key, value in delegate.compile_specs}
    function.metadata_props[BACKEND] = delegate.backend_id
    function.metadata_props[COMPILE_SPECS] = json.dumps(specs, sort_keys=True)
    dtypes = [value.dtype.name for value in graph.inputs[:-1] if value.dtype is not None]
    function.metadata_props[INPUTS] = ",".join([*dtypes, ir.DataType.UINT8.name])
    function.metadata_props[PROCESSED] = digest_of([delegate.processed_bytes])
    return function


def _inputs(
    delegate: Delegate, context: Context, op: OpBuilder, arguments: Sequence[Value]
) -> list[Any]:
    """Return a value for each placeholder: tensors by shape, numbers by their symbol."""
    scope, tensors = op.scope, iter(arguments)
    values: list[Any] = []
    for node in delegate.placeholders:
        value = ir.Value(name=scope.names.unique(node.name))
        scope.graph.inputs.append(value)
        example = node.meta["val"]
        if is_number(node):
            value.dtype = ir.DataType.INT64
            expression = context.expression(example)
            scope.dims.bind_scalar(expression, set_dims(value, ()))
            values.append(expression)
            continue
        value.dtype = next(tensors).dtype or ir_dtype(example.dtype)
        set_dims(value, context.dims(example))
        scope.dims.bind_axes(value, value.meta["dims"])
        values.append(value)
    return values


def _content(function: ir.Function) -> bytes:
    """Return a function as bytes that are equal for equal functions with other names and sources.

    The names of values are unique in a function, its subgraphs included.
    """
    proto = ir.to_proto(function)
    numbers: dict[str, str] = {"": ""}

    def number(name: str) -> str:
        return numbers.setdefault(name, str(len(numbers)))

    proto.name = ""
    # In the order of definition, so that equal functions get equal numbers.
    proto.input[:] = map(number, proto.input)
    _rename(proto.node, number)
    proto.output[:] = map(number, proto.output)
    del proto.value_info[:]
    content: bytes = proto.SerializeToString(deterministic=True)
    return content


def _rename(nodes: Iterable[onnx.NodeProto], number: Callable[[str], str]) -> None:
    """Rename the values of nodes, and remove the nodes' own names and sources."""
    for node in nodes:
        node.name = ""
        del node.metadata_props[:]
        node.input[:] = map(number, node.input)
        for attribute in node.attribute:
            attribute.t.name = ""
            graph = attribute.g
            for value in graph.input:
                value.name = number(value.name)
            _rename(graph.node, number)
            for value in graph.output:
                value.name = number(value.name)
            del graph.value_info[:]
        node.output[:] = map(number, node.output)
