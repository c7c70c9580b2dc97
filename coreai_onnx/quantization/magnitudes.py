"""The largest magnitudes of values on calibration data, also inside the functions of modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.model_types import ModelTypes, Type
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


def known_types(model: ir.Model, functions: Sequence[ir.Function]) -> dict[ir.Value, Type]:
    """Return the types of the values of the main graph, and of functions for their first calls.

    Args:
        model: The model.
        functions: Functions, each after its callers.
    """
    types = ModelTypes(lambda node: model.functions.get(node.op_identifier()), model.ir_version)
    known = types.of_graph(model.graph)
    calls: dict[ir.OperatorIdentifier, ir.Node] = {}
    for node in (node for root in (model.graph, *functions) for node in root):
        calls.setdefault(node.op_identifier(), node)
    for function in functions:
        inputs = calls[function.identifier()].inputs
        known |= types.of_function(
            function, [None if value is None else known.get(value) for value in inputs]
        )
    return known


def largest_magnitudes(model: ir.Model, feeds: Iterable[Feed]) -> dict[Label, float]:
    """Return the largest finite magnitude of each float32 value, over all calls.

    The model computes them: values are not in memory at once.

    Args:
        model: The model, which stays as it is.
        feeds: The inputs of each call, which are consecutive: states are carried on.

    Raises:
        QuantizationError: There is no data, or it does not fit the model.
    """
    probed = model.clone()
    labels = _Probes(probed).labels
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


class _Probes:
    """Lets a model return the largest finite magnitude of each float32 value.

    Attributes:
        labels: The values by the names of the added outputs.
    """

    def __init__(self, model: ir.Model) -> None:
        functions = callers_first(model)
        self._model, self._known = model, known_types(model, functions)
        self._inner: dict[ir.OperatorIdentifier, list[Label]] = {}
        for function in functions[::-1]:
            found = self._probe(function, function.identifier())
            self._inner[function.identifier()] = list(found.values())
        self.labels = {
            value.name or "": label for value, label in self._probe(model.graph, None).items()
        }

    def _probe(
        self, root: ir.Graph | ir.Function, key: ir.OperatorIdentifier | None
    ) -> dict[ir.Value, Label]:
        """Add the magnitudes in a graph, and in the functions that it calls, to its outputs."""
        returned, added = set(root.outputs), dict[ir.Value, Label]()
        wanted: list[ir.Value] = []
        for node in [node for node in root if node.op_type != "Constant"]:
            wanted += [v for v in node.outputs if v not in returned and self._is_float(v)]
            added |= self._passed_on(node)
        ends = _constants(root) if wanted else {}
        for value in wanted:
            added[_magnitude(root, value, ends)] = key, value.name or ""
        root.outputs.extend(added)
        return added

    def _passed_on(self, call: ir.Node) -> dict[ir.Value, Label]:
        """Let a call return what its function returns in addition."""
        function, first = module_function(self._model, call), len(call.outputs)
        labels = self._inner.get(function.identifier(), []) if function is not None else []
        call.resize_outputs(first + len(labels))
        for index, value in enumerate(call.outputs[first:]):
            value.name = f"{call.outputs[0].name}.probe{index}"
        return dict(zip(call.outputs[first:], labels, strict=True))

    def _is_float(self, value: ir.Value) -> bool:
        found = self._known.get(value)
        element = None if found is None else found.tensor_type.elem_type
        return bool(value.name) and element == onnx.TensorProto.FLOAT


def _constants(root: ir.Graph | ir.Function) -> dict[str, ir.Value]:
    """Add what the magnitudes of a graph are computed with."""
    arrays = {
        "infinity": np.float32(np.inf),
        "zero": np.zeros(1, np.float32),
        "row": np.array([-1], np.int64),
    }
    made = {}
    for name, array in arrays.items():
        node = ir.node("Constant", [], {"value": ir.tensor(np.asarray(array))})
        node.outputs[0].name = f"magnitude.{name}"
        root.append(node)
        made[name] = node.outputs[0]
    return made


def _magnitude(
    root: ir.Graph | ir.Function, value: ir.Value, ends: dict[str, ir.Value]
) -> ir.Value:
    """Add the nodes that compute the largest finite magnitude of a value, 0 of an empty one."""

    def made(op: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        node = ir.node(op, inputs, attributes)
        node.outputs[0].name = f"{value.name}.magnitude.{op}"
        root.append(node)
        return node.outputs[0]

    size = made("Abs", value)
    finite = made("Where", made("Less", size, ends["infinity"]), size, ends["zero"])
    joined = made("Concat", made("Reshape", finite, ends["row"]), ends["zero"], axis=0)
    largest = made("ReduceMax", joined, keepdims=0)
    largest.type = ir.TensorType(ir.DataType.FLOAT)
    return largest
