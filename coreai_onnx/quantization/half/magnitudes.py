"""The largest magnitudes of values on calibration data, also inside the functions of modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.model.standard.model_protos import subgraphs
from coreai_onnx.model.standard.model_types import ModelTypes, Type
from coreai_onnx.quantization.calibration import Feed, run_calls
from coreai_onnx.quantization.half.bodies import is_control_flow
from coreai_onnx.runtime.sessions.session import Session

Label = tuple[ir.OperatorIdentifier | None, str]
"""The function of a value, None for the main graph, and the name of the value."""


def callers_first(model: ir.Model) -> list[ir.Function]:
    """Return the functions of modules that the main graph calls, each after its callers.

    Composites are left out.
    """
    finished: dict[ir.OperatorIdentifier, ir.Function] = {}

    def visit(graph: ir.Graph | ir.Function) -> None:
        for node in graph.all_nodes():
            function = module_function(model, node)
            if function is not None and function.identifier() not in finished:
                visit(function)
                finished[function.identifier()] = function

    visit(model.graph)
    # The visit finishes a function after all that it calls.
    return list(finished.values())[::-1]


def module_function(model: ir.Model, node: ir.Node) -> ir.Function | None:
    """Return the function that a node calls, if it is not the body of a composite."""
    return None if node.domain == STANDARD_DOMAIN else model.functions.get(node.op_identifier())


def known_types(model: ir.Model, functions: Sequence[ir.Function]) -> dict[ir.Value, Type]:
    """Return the types of the values of the main graph, and of functions for their first calls.

    The values in loops and branches are among them.

    Args:
        model: The model.
        functions: Functions, each after its callers.
    """
    types = ModelTypes(
        lambda node: model.functions.get(node.op_identifier()), model.ir_version, bodies=True
    )
    inferred = types.of_graph(model.graph)
    calls: dict[ir.OperatorIdentifier, ir.Node] = {}
    roots: list[ir.Graph | ir.Function] = [model.graph, *functions]
    for node in (node for root in roots for node in root.all_nodes()):
        # A body is converted once: the types of its first call stand for those of all calls.
        calls.setdefault(node.op_identifier(), node)
    for function in functions:
        inputs = calls[function.identifier()].inputs
        inferred |= types.of_function(
            function, [None if value is None else inferred.get(value) for value in inputs]
        )
    return inferred


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
    magnitudes: dict[Label, float] = {}
    for _, arrays in run_calls(session, feeds):
        for name, array in arrays.items():
            values = np.asarray(array)
            if values.dtype.kind != "f":
                continue
            finite = np.abs(values[np.isfinite(values)])
            # Inputs and outputs of the model are measured without a probe.
            label = labels.get(name, (None, name))
            magnitudes[label] = max(magnitudes.get(label, 0.0), float(finite.max(initial=0)))
    return magnitudes


class _Probes:
    """Lets a model return the largest finite magnitude of each float32 value.

    Attributes:
        labels: The values by the names of the added outputs.
    """

    def __init__(self, model: ir.Model) -> None:
        functions = callers_first(model)
        self._model, self._known = model, known_types(model, functions)
        self._inner: dict[ir.OperatorIdentifier, list[Label]] = {}
        self._count = 0
        # Callees come first: their callers pass on what they return.
        for function in functions[::-1]:
            magnitudes = self._probe(function, function.identifier())
            function.outputs.extend(magnitudes)
            self._inner[function.identifier()] = list(magnitudes.values())
        added = self._probe(model.graph, None)
        model.graph.outputs.extend(added)
        self.labels = {value.name or "": label for value, label in added.items()}

    def _probe(
        self, root: ir.Graph | ir.Function, key: ir.OperatorIdentifier | None, *, body: bool = False
    ) -> dict[ir.Value, Label]:
        """Add the magnitudes in a graph, its bodies, and the functions that it calls.

        Args:
            root: The graph.
            key: The function that the graph is of, or that it is in.
            body: Whether the graph is a body, whose outputs the caller does not see in each step.

        Returns:
            The magnitudes, which are to be outputs of the graph.
        """
        # Outputs reach the caller, which measures them; those of a body only after the last step.
        seen = set() if body else set(root.outputs)
        added: dict[ir.Value, Label] = {}
        measured: dict[ir.Value, Label] = {}
        # The list is made before magnitudes are added, which must not be measured in turn.
        for node in [node for node in root if node.op_type != "Constant"]:
            floats = [v for v in node.outputs if v not in seen and self._is_float(v)]
            measured |= {value: (key, value.name or "") for value in floats}
            added |= self._passed_on(node)
            measured |= self._from_bodies(node, key)
        ends = self._constants(root) if measured else {}
        for value, label in measured.items():
            added[_magnitude(root, value, ends)] = label
        return added

    def _from_bodies(
        self, node: ir.Node, key: ir.OperatorIdentifier | None
    ) -> dict[ir.Value, Label]:
        """Let an If, a Loop or a Scan return the magnitudes in its bodies, one for each step."""
        if not is_control_flow(node):
            return {}
        first, labels = len(node.outputs), list[Label]()
        magnitudes = {body: self._probe(body, key, body=True) for body in subgraphs(node)}
        for owner, inner in magnitudes.items():
            labels += inner.values()
            for body in magnitudes:  # the branch that is not taken has magnitudes of 0
                body.outputs.extend(inner if body is owner else self._zeros(body, len(inner)))
        node.resize_outputs(first + len(labels))
        for name in ("scan_output_axes", "scan_output_directions"):
            # ONNX requires an entry for each of the scan outputs, if there are any entries.
            if attribute := node.attributes.get(name):
                each = [*attribute.as_ints(), *(0 for _ in labels)]
                node.attributes[name] = ir.AttrInt64s(name, each)
        for value in node.outputs[first:]:
            value.name = self._unused("probe")
        return dict(zip(node.outputs[first:], labels, strict=True))

    def _zeros(self, body: ir.Graph, count: int) -> list[ir.Value]:
        return [
            _constant(body, np.zeros((), np.float32), self._unused("zero")) for _ in range(count)
        ]

    def _unused(self, name: str) -> str:
        self._count += 1
        return f"magnitude{self._count}.{name}"

    def _passed_on(self, call: ir.Node) -> dict[ir.Value, Label]:
        """Let a call return what its function returns in addition."""
        function, first = module_function(self._model, call), len(call.outputs)
        labels = self._inner.get(function.identifier(), []) if function is not None else []
        call.resize_outputs(first + len(labels))
        for index, value in enumerate(call.outputs[first:]):
            value.name = f"{call.outputs[0].name}.probe{index}"
        return dict(zip(call.outputs[first:], labels, strict=True))

    def _constants(self, root: ir.Graph | ir.Function) -> dict[str, ir.Value]:
        """Add what the magnitudes of a graph are computed with."""
        arrays: dict[str, np.ndarray] = {
            "infinity": np.array(np.inf, np.float32),
            "zero": np.zeros(1, np.float32),
            "row": np.array([-1], np.int64),
        }
        return {name: _constant(root, array, self._unused(name)) for name, array in arrays.items()}

    def _is_float(self, value: ir.Value) -> bool:
        value_type = self._known.get(value)
        element = None if value_type is None else value_type.tensor_type.elem_type
        return bool(value.name) and element == onnx.TensorProto.FLOAT


def _constant(root: ir.Graph | ir.Function, array: np.ndarray, name: str) -> ir.Value:
    """Add a constant to a graph."""
    node = ir.node("Constant", [], {"value": ir.tensor(array)})
    (value,) = node.outputs
    value.name = name
    value.type, value.shape = (
        ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        ir.Shape(array.shape),
    )
    root.append(node)
    return value


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
    # Less is false for NaN too, so that both infinity and NaN count as 0.
    finite = made("Where", made("Less", size, ends["infinity"]), size, ends["zero"])
    # Without the 0, the largest of an empty value would be minus infinity.
    joined = made("Concat", made("Reshape", finite, ends["row"]), ends["zero"], axis=0)
    largest = made("ReduceMax", joined, keepdims=0)
    largest.type, largest.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(())
    return largest
