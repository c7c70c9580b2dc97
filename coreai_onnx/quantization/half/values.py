"""The values of a program in 16 bits, constants among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.model.standard.model_types import Type
from coreai_onnx.model.standard.op_schemas import ONNX_DOMAINS
from coreai_onnx.quantization.half.bodies import bodies, equal_dtypes
from coreai_onnx.quantization.half.magnitudes import (
    Label,
    callers_first,
    known_types,
    module_function,
)

_PASS_SMALL = frozenset({"Add", "Max", "Clip", "Sqrt", "Reciprocal", "Pow"})
"""Ops whose results may be as small, or as large, as a constant that float16 cannot hold."""


class Values:
    """The values that a conversion may change.

    Attributes:
        model: The model.
        dtype: ``FLOAT16`` or ``BFLOAT16``.
        functions: The functions of modules, without those that keep float32.
        holders: The bodies that are converted, and the nodes that have them.
        known: The types of the values before.
        constants: The values that are constants, also those of functions in all calls.
        flagged: Values that 16 bits cannot hold, with the reason.
        fills: Values that are computed in float32 and may be as large as float32's limits.
    """

    def __init__(
        self,
        model: ir.Model,
        dtype: ir.DataType,
        keep: Sequence[str],
        magnitudes: Mapping[Label, float],
        isolated: set[ir.OperatorIdentifier],
    ) -> None:
        """Find the types and flag values; the arguments are those of `Choices`."""
        self.model, self.dtype, self._isolated = model, dtype, isolated
        self.functions = [f for f in callers_first(model) if f.identifier() not in isolated]
        self.holders: dict[ir.Graph, ir.Node] = {}
        self._keys: dict[ir.Graph | ir.Function, ir.OperatorIdentifier | None] = {}
        for root in self.outermost:
            key = root.identifier() if isinstance(root, ir.Function) else None
            inner = bodies(root, keep)
            self.holders |= inner
            self._keys[root] = key
            self._keys |= dict.fromkeys(inner, key)
        self._calls: dict[ir.OperatorIdentifier, list[ir.Node]] = {}
        for node in (node for root in self.roots for node in root):
            self._calls.setdefault(node.op_identifier(), []).append(node)
        self.known = known_types(model, self.functions)
        self.flagged: dict[ir.Value, str] = {}
        self.fills: set[ir.Value] = set()
        self.constants: set[ir.Value] = set()
        for root in self.roots:
            self._flag_constants(root)
            self._flag_large(root, magnitudes)
        count = -1
        # Flags pass into functions and out of them: a loop until nothing is added.
        while count < len(self.flagged):
            count = len(self.flagged)
            self._pass_flags()

    @property
    def outermost(self) -> list[ir.Graph | ir.Function]:
        """The main graph, and the functions, each after its callers."""
        return [self.model.graph, *self.functions]

    @property
    def roots(self) -> list[ir.Graph | ir.Function]:
        """The main graph, the functions, and the converted bodies, outer ones first."""
        return [*self.outermost, *self.holders]

    def is_float(self, value: ir.Value | None) -> bool:
        """Return whether a value was a float32 tensor before."""
        return value is not None and element(self.known.get(value)) == onnx.TensorProto.FLOAT

    def may_be_half(self, value: ir.Value | None) -> bool:
        """Return whether 16 bits can hold a value that was a float32 tensor before."""
        return self.is_float(value) and value not in self.flagged

    def callee(self, node: ir.Node) -> ir.Function | None:
        """Return the function of a module that a node calls and that is converted."""
        function = module_function(self.model, node)
        return None if node.op_identifier() in self._isolated else function

    def opset(self, node: ir.Node) -> int:
        """Return the version of ONNX's operators in the graph of a node."""
        graph = node.graph
        # Bodies import no opsets: the graph or function around them does.
        while graph in self.holders:
            graph = self.holders[graph].graph
        assert graph is not None
        return graph.opset_imports.get("", 1)

    def reader(self, value: ir.Value, node: ir.Node) -> ir.Node:
        """Return the node in the graph of a value that is, or whose bodies have, a node."""
        while node.graph is not value.graph and node.graph in self.holders:
            node = self.holders[node.graph]
        return node

    # ------------------------------------------------------------------ flags
    def _flag_constants(self, root: ir.Graph | ir.Function) -> None:
        """Flag constants that 16 bits cannot hold."""
        for value, tensor in constants(root):
            self.constants.add(value)
            if not self.is_float(value):
                continue
            if why := fault(tensor, self.dtype):
                self.flagged[value] = why
            elif is_fill(tensor):
                self.fills.add(value)

    def _flag_large(self, root: ir.Graph | ir.Function, magnitudes: Mapping[Label, float]) -> None:
        """Flag values that exceeded float16's range."""
        # bfloat16 has the range of float32.
        if self.dtype != ir.DataType.FLOAT16:
            return
        for value in (*root.inputs, *(v for node in root for v in node.outputs)):
            size = magnitudes.get((self._keys[root], value.name or ""), 0.0)
            if size > LIMIT and self.is_float(value):
                self.flagged[value] = f"a value reaches {size:.3g}, above float16's 65504"

    def _pass_flags(self) -> None:
        """Pass flags from values to results, and between calls and functions, once."""
        for function in self.functions:
            self._enter(function)
        for root in self.roots:
            for node in root:
                self._pass_on(node)
        for node in dict.fromkeys(self.holders.values()):
            for group in equal_dtypes(node):
                self._equal(group)
        # Callees come first, so that a flag passes through nested calls in one turn.
        for function in self.functions[::-1]:
            for index, value in enumerate(function.outputs):
                if value in self.flagged:
                    for call in self._calls[function.identifier()]:
                        if index < len(call.outputs):
                            self.flagged[call.outputs[index]] = self.flagged[value]

    def _enter(self, function: ir.Function) -> None:
        """Pass what is known of the calls of a function to its inputs and outputs."""
        calls = self._calls[function.identifier()]
        for index, value in enumerate(function.outputs):
            for result in (call.outputs[index] for call in calls if index < len(call.outputs)):
                if result in self.flagged:
                    self.flagged[value] = self.flagged[result]
        for index, value in enumerate(function.inputs):
            passed = [call.inputs[index] for call in calls if index < len(call.inputs)]
            # Externalized modules get their weights as arguments; these count as constants in the
            # function.
            if passed and all(v in self.constants for v in passed):
                self.constants.add(value)
            for argument in passed:
                if argument in self.flagged:
                    self.flagged[value] = self.flagged[argument]

    def _equal(self, group: Sequence[ir.Value]) -> None:
        """Flag all of the values that have one dtype if one is flagged, or is of unknown type."""
        floats = [value for value in group if self.is_float(value)]
        why = next((self.flagged[value] for value in floats if value in self.flagged), "")
        # A value of unknown type cannot be converted with the others, so none of them is.
        if floats and len(floats) < len(group):
            why = why or "the type of a value of a loop or branch is unknown"
        if why:
            self.flagged |= {value: why for value in floats if value not in self.flagged}

    def _pass_on(self, node: ir.Node) -> None:
        """Pass the flag of a constant to the results that are as small or as large as it."""
        causes = [self.flagged[v] for v in node.inputs if v in self.flagged]
        if causes and node.op_type in _PASS_SMALL and self.is_float(node.outputs[0]):
            self.flagged.setdefault(node.outputs[0], causes[0])


def constants(root: ir.Graph | ir.Function) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield the initializers that are not inputs, and the results of Constant nodes."""
    if isinstance(root, ir.Graph):
        for value in root.initializers.values():
            if value.const_value is not None and not value.is_graph_input():
                yield value, value.const_value
    for node in root:
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            tensor = ir.convenience.get_const_tensor(node.outputs[0])
            if tensor is not None:
                yield node.outputs[0], tensor


def element(value_type: Type | None) -> int | None:
    """Return the dtype of a tensor; None if it is unknown, or another type."""
    if value_type is None or not value_type.HasField("tensor_type"):
        return None
    return int(value_type.tensor_type.elem_type) or None


DTYPES = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
LIMIT = 65504.0
"""The largest finite float16."""
FILL = 1e9
"""Constants from this magnitude on mean infinity, as in masks, and are clamped."""
_WORST = 2.0**-10
"""Relative error that rounding may cause; that of numbers in float16's normal range is 2**-12."""


def fault(tensor: ir.TensorProtocol, dtype: ir.DataType) -> str:
    """Return why a float32 constant cannot have 16 bits; empty if it can.

    Args:
        tensor: The constant.
        dtype: ``FLOAT16`` or ``BFLOAT16``, which has float32's range.
    """
    if dtype == ir.DataType.BFLOAT16:
        return ""
    values = np.asarray(tensor.numpy())
    sizes = np.abs(values[np.isfinite(values)])
    if ((sizes > LIMIT) & (sizes < FILL)).any():
        return f"the constant {sizes[sizes < FILL].max():.3g} exceeds float16's largest, 65504"
    small = sizes[sizes <= LIMIT].astype(np.float64)
    # The error of all values together: a few tiny weights among large ones do no harm.
    error = np.square(small - small.astype(np.float16)).sum()
    if error > _WORST**2 * np.square(small).sum():
        return f"the constant {small.max():.3g} is below float16's normal numbers"
    return ""


def is_fill(tensor: ir.TensorProtocol) -> bool:
    """Return whether a constant has finite values that mean infinity."""
    values = np.asarray(tensor.numpy())
    return bool((np.isfinite(values) & (np.abs(values) >= FILL)).any())


def narrowed(tensor: ir.TensorProtocol, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    """Return a constant in 16 bits, converted when it is read; finite values stay finite."""
    shape = ir.Shape(tensor.shape.numpy())
    # A large model would be in memory twice if its weights were converted here.
    return ir.LazyTensor(
        lambda: ir.tensor(_converted(np.asarray(tensor.numpy()), dtype), dtype=dtype, name=name),
        dtype=dtype,
        shape=shape,
        name=name,
    )


def _converted(values: np.ndarray, dtype: ir.DataType) -> np.ndarray:
    largest = float(ml_dtypes.finfo(dtype.numpy()).max)
    # Infinities in a mask are meant as such, and stay.
    clamped = np.where(np.isfinite(values), np.clip(values, -largest, largest), values)
    return np.asarray(clamped.astype(dtype.numpy()))
