"""The computation of positions before a call: from the sizes of dims, or in onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.model.metadata import RELATION_LIMIT
from coreai_onnx.runtime.states.binding import Binding, Values
from coreai_onnx.runtime.tensors.expressions import evaluated, names_in
from coreai_onnx.runtime.tensors.outputs import Array

Computation = Callable[[Values, Mapping[str, int]], Mapping[str, Array]]
"""Returns the outputs of a model by name, from its inputs and the sizes of their dims; may raise
any exception."""

_ARITHMETIC = {"Add": "({}) + ({})", "Sub": "({}) - ({})", "Mul": "({}) * ({})", "Neg": "-({})"}
_RESHAPES = {"Identity", "Squeeze", "Unsqueeze"}


def computation(model: ir.Model) -> Computation | None:
    """Return the computation of a model of few integers; None if onnxruntime refuses the model.

    The positions of a decoder follow from dims: ``total_sequence_length - sequence_length``. In
    onnxruntime they took 0.11 ms, because its code is not in the cache after a token of 6 ms:
    "Calls with a static cache" in docs/internals/performance_log.md.
    """
    names = [str(value.name) for value in model.graph.outputs]
    texts = _expressions(model.graph)
    results = [texts.get(value, "") for value in model.graph.outputs]
    # With any sizes: a float or a name that is not in parentheses would fail with all.
    if evaluated(results, dict.fromkeys(names_in(" + ".join(results)), 1)) is not None:
        return partial(_evaluate, names, results)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    # A few integers: threads would cost more than they save.
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(to_proto(model).SerializeToString(), options)
    except Exception:  # noqa: BLE001 - onnxruntime's exceptions share no base class below Exception
        return None
    return partial(_run, session, [str(value.name) for value in model.graph.inputs], names)


def _expressions(graph: ir.Graph) -> dict[ir.Value | None, str]:
    """Return the values that are one integer as expressions of dims."""
    constants = ((x, x.const_value) for x in graph.initializers.values())
    texts: dict[ir.Value | None, str] = {
        x: str(tensor.numpy().item()) for x, tensor in constants if tensor and tensor.size == 1
    }
    for node in graph:
        text = ""
        if node.op_type == "Shape" and (value := node.inputs[0]) is not None:
            bounds = (node.attributes.get(name) for name in ("start", "end"))
            part = slice(*(None if bound is None else bound.as_int() for bound in bounds))
            dims = tuple(value.shape or ())[part]
            if len(dims) == 1 and value.is_graph_input():
                text = str(dims[0])
        elif node.op_type in _RESHAPES:
            text = texts.get(node.inputs[0], "")
        elif node.op_type in _ARITHMETIC and all(value in texts for value in node.inputs):
            text = _ARITHMETIC[node.op_type].format(*(texts[value] for value in node.inputs))
        # Without a limit, a chain of sums of a value and itself would double it in each node.
        if text and len(text) <= RELATION_LIMIT:
            texts[node.outputs[0]] = text
    return texts


def _evaluate(
    names: Sequence[str], texts: Sequence[str], feeds: Values, sizes: Mapping[str, int]
) -> dict[str, Array]:
    del feeds
    values = evaluated(texts, sizes)
    if values is None:
        raise KeyError(texts)
    return {name: np.array([value]) for name, value in zip(names, values, strict=True)}


def _run(
    session: ort.InferenceSession,
    inputs: list[str],
    outputs: list[str],
    feeds: Values,
    sizes: Mapping[str, int],
) -> dict[str, Array]:
    del sizes
    values = Binding(session, outputs).run({name: feeds[name] for name in inputs}, {}, None)
    return {name: value.numpy() for name, value in values.items()}
