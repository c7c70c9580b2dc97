"""The computation of positions before a call: with numpy, or in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.runtime.states.binding import Binding, Values
from coreai_onnx.runtime.tensors.outputs import Array

Computation = Callable[[Values], Mapping[str, Array]]
"""Returns the outputs of a model by name, from its inputs; may raise any exception."""

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Identity": np.asarray,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "Sub": np.subtract,
    "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(axes)),
}
"""Operators that numpy computes as ONNX defines them for integers, if they have no attributes."""


def computation(model: ir.Model) -> Computation | None:
    """Return the computation of a model of few integers; None if onnxruntime refuses the model.

    onnxruntime took 0.11 ms for the five nodes of a decoder, because its code is not in the cache
    after a token of 6 ms: "Calls with a static cache" in docs/internals/performance_log.md.
    """
    graph = model.graph
    functions = [_function(node) for node in graph]
    names = [str(value.name) for value in graph.outputs]
    if None not in functions:
        steps = [
            (function, [str(value and value.name) for value in node.inputs], node.outputs[0].name)
            for function, node in zip(functions, graph, strict=True)
        ]
        weights = {n: x.const_value.numpy() for n, x in graph.initializers.items() if x.const_value}
        return partial(_compute, steps, weights, names)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # A few integers: threads would cost more than they save.
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(to_proto(model).SerializeToString(), options)
    except Exception:  # noqa: BLE001 - onnxruntime's exceptions share no base class below Exception
        return None
    return partial(_run, session, [str(value.name) for value in graph.inputs], names)


def _function(node: ir.Node) -> Callable[..., Any] | None:
    """Return the function of numpy that computes a node; None if there is none."""
    if node.op_type == "Shape":
        start, end = (node.attributes.get(name) for name in ("start", "end"))
        return partial(_dims, slice(start and start.as_int(), end and end.as_int()))
    plain = not node.attributes and None not in node.inputs
    function = _FUNCTIONS.get(node.op_type) if plain else None
    return function and partial(_apply, function)


def _apply(function: Callable[..., Any], *values: ort.OrtValue | Array) -> Array:
    arrays = (x.numpy() if isinstance(x, ort.OrtValue) else x for x in values)
    return cast(Array, function(*arrays))


def _dims(part: slice, value: ort.OrtValue | Array) -> Array:
    # numpy has no array for some types of onnxruntime, but their shapes are known.
    shape = value.shape() if isinstance(value, ort.OrtValue) else value.shape
    return np.array(shape[part], np.int64)


def _compute(
    steps: list[tuple[Callable[..., Any], list[str], str]],
    weights: Mapping[str, Array],
    names: list[str],
    feeds: Values,
) -> dict[str, Array]:
    results: dict[str, Any] = dict(weights)
    for function, inputs, output in steps:
        values = (results[name] if name in results else feeds[name] for name in inputs)
        results[output] = function(*values)
    return {name: results[name] for name in names}


def _run(
    session: ort.InferenceSession, inputs: list[str], outputs: list[str], feeds: Values
) -> dict[str, Array]:
    binding = Binding(session, outputs)
    values = binding.run({name: feeds[name] for name in inputs}, {}, None)
    return {name: value.numpy() for name, value in values.items()}
