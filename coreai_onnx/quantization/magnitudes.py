"""The largest magnitudes of values on calibration data, also inside the functions of modules."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.quantization.calibration import Feed, run_calls
from coreai_onnx.runtime.session import Session

Label = tuple[ir.OperatorIdentifier | None, str]
"""The function of a value, None for the main graph, and the name of the value."""


def callers_first(model: ir.Model) -> list[ir.Function]:
    """Return the functions of modules that the main graph calls, each after its callers.

    Composites, and calls inside of loops and branches, are left out.
    """
    finished: dict[ir.OperatorIdentifier, ir.Function] = {}

    def visit(graph: ir.Graph | ir.Function) -> None:
        for node in graph:
            function = module_function(model, node)
            if function is not None and function.identifier() not in finished:
                visit(function)
                finished[function.identifier()] = function

    visit(model.graph)
    return list(finished.values())[::-1]


def module_function(model: ir.Model, node: ir.Node) -> ir.Function | None:
    """Return the function that a node calls, if it is not the body of a composite."""
    return None if node.domain == STANDARD_DOMAIN else model.functions.get(node.op_identifier())


def largest_magnitudes(model: ir.Model, feeds: Iterable[Feed]) -> dict[Label, float]:
    """Return the largest finite magnitude of each floating value, over all calls.

    Args:
        model: The model, which stays as it is.
        feeds: The inputs of each call, which are consecutive: states are carried on.

    Raises:
        QuantizationError: There is no data, or it does not fit the model.
    """
    probed = model.clone()
    labels = _probe(probed)
    session = Session(probed)
    found: dict[Label, float] = {}
    for _, arrays in run_calls(session, feeds):
        for name, array in arrays.items():
            values = np.asarray(array)
            if values.dtype.kind != "f":
                continue
            finite = np.abs(values[np.isfinite(values)])
            label = labels.get(name, (None, name))
            found[label] = max(found.get(label, 0.0), float(finite.max(initial=0)))
    return found


def _probe(model: ir.Model) -> dict[str, Label]:
    """Return all values from the model; give the labels of the added outputs by name."""
    inner: dict[ir.OperatorIdentifier, list[Label]] = {}
    for function in callers_first(model)[::-1]:
        found = _return_values(model, function, function.identifier(), inner)
        inner[function.identifier()] = [label for _, label in found]
    return {
        value.name or "": label for value, label in _return_values(model, model.graph, None, inner)
    }


def _return_values(
    model: ir.Model,
    root: ir.Graph | ir.Function,
    key: ir.OperatorIdentifier | None,
    inner: dict[ir.OperatorIdentifier, list[Label]],
) -> list[tuple[ir.Value, Label]]:
    """Add the values of a graph, and those of the functions that it calls, to its outputs."""
    returned, added = set(root.outputs), list[tuple[ir.Value, Label]]()
    for node in [node for node in root if node.op_type != "Constant"]:
        values = [(value, (key, value.name or "")) for value in node.outputs if value.name]
        function, first = module_function(model, node), len(node.outputs)
        labels = inner[function.identifier()] if function is not None else []
        node.resize_outputs(first + len(labels))
        for index, label in enumerate(labels):
            value = node.outputs[first + index]
            value.name = f"{node.outputs[0].name}.probe{index}"
            values.append((value, label))
        added += [(value, label) for value, label in values if value not in returned]
    root.outputs.extend(value for value, _ in added)
    return added
