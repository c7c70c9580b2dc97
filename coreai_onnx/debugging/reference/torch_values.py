"""The results of an exported program: those of torch, and those in float64.

In float64, each node gets torch's own results as its inputs at the *anchors*. So the difference of
the two is the error that torch makes between anchors, and not one that accumulates over the model.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from coreai_onnx.debugging.difference import Array
from coreai_onnx.debugging.reference.control_flow import UNRUNNABLE, draws
from coreai_onnx.debugging.reference.widened import WIDE, is_floating, widened
from coreai_onnx.errors import ComparisonError, failures_as
from coreai_onnx.export.compat.torch_names import OpOverload, pytree
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.tensors.values import to_numpy


@dataclass
class TorchValues:
    """The results of one call.

    Attributes:
        results: torch's results, by FX node, or by node and position (``split:1``).
        ideal: The same in float64.
        undetermined: Results that depend, since the anchors, on random numbers, on memory that is
            not initialized, or on the order of equal elements in a sort.
        outputs: The user's outputs that are tensors, in order.
        new_states: The new values of mutated buffers and inputs, by their placeholder's target.
        inputs: The values of the placeholders, in order.
    """

    results: dict[str, torch.Tensor] = field(default_factory=dict)
    ideal: dict[str, torch.Tensor] = field(default_factory=dict)
    undetermined: set[str] = field(default_factory=set)
    outputs: list[str] = field(default_factory=list)
    new_states: dict[str, torch.Tensor] = field(default_factory=dict)
    inputs: tuple[Any, ...] = ()


def torch_values(
    program: ExportedProgram,
    leaves: Iterable[Any],
    anchors: Collection[str] | None = None,
    states: Mapping[str, torch.Tensor] | None = None,
) -> TorchValues:
    """Run an exported program node by node, and again in float64.

    Args:
        program: A program without in-place ops.
        leaves: Its flat inputs, such as `leaves_of` its arguments; more than it has are ignored.
        anchors: Results that float64 starts again from; None for all, so that each node is compared
            alone; empty for the error of the whole program.
        states: Values of buffers that differ from those in the program, by their paths.

    Raises:
        ComparisonError: If the program cannot be run on the inputs.
    """
    values = own_values(program, leaves, states)
    widen(program.graph_module, values, anchors, values.ideal.__setitem__)
    return values


def own_values(
    program: ExportedProgram,
    leaves: Iterable[Any],
    states: Mapping[str, torch.Tensor] | None = None,
) -> TorchValues:
    """Run an exported program node by node, without float64; see `torch_values`."""
    flat = iter(leaves)
    signature = program.graph_signature
    try:
        inputs = [_input(program, spec, flat, states or {}) for spec in signature.input_specs]
    except StopIteration:
        raise ComparisonError("the exported program has more inputs than were given") from None
    values = _run(program.graph_module, inputs)
    for spec in signature.output_specs:
        name = getattr(spec.arg, "name", None)
        if name not in values.results:
            continue
        if spec.kind == OutputKind.USER_OUTPUT:
            values.outputs.append(name)
        elif spec.target is not None:
            values.new_states[spec.target] = values.results[name]
    return values


def torch_values_in(graph: fx.GraphModule, operands: Sequence[Any]) -> TorchValues:
    """Run a graph of control flow node by node, each in float64 from torch's own values.

    Returns:
        The results; ``outputs`` has an empty name for an output that is not a tensor.

    Raises:
        ComparisonError: If the graph cannot be run.
    """
    values = _run(graph, operands)
    widen(graph, values, None, values.ideal.__setitem__)
    leaves = pytree.tree_leaves(graph.graph.output_node().args[0])
    names = (leaf.name if isinstance(leaf, fx.Node) else "" for leaf in leaves)
    values.outputs = [name if name in values.results else "" for name in names]
    return values


def _run(graph: fx.GraphModule, inputs: Sequence[Any]) -> TorchValues:
    values = TorchValues(inputs=tuple(inputs))
    with failures_as(ComparisonError, UNRUNNABLE), torch.no_grad():
        _Narrow(graph, values).run(*inputs, enable_io_processing=False)
    return values


def widen(
    graph: fx.GraphModule,
    values: TorchValues,
    anchors: Collection[str] | None,
    each: Callable[[str, torch.Tensor], None],
) -> None:
    """Run a graph in float64, and pass each result on, so that none has to be kept.

    Args:
        graph: The graph of a program.
        values: Its own results; ``undetermined`` is set.
        anchors: As for `torch_values`.
        each: Called with name and result of each node, in order.

    Raises:
        ComparisonError: If the graph cannot be run.
    """
    with failures_as(ComparisonError, UNRUNNABLE), torch.no_grad():
        wide = _Wide(graph, values, anchors, each)
        wide.run(*map(_wide, values.inputs), enable_io_processing=False)


def as_stored(tensor: torch.Tensor) -> Array:
    """Return a tensor as the model stores it: complex numbers as pairs."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    info = TensorInfo("", str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    return to_numpy(tensor, info)


def tensor_of(array: Array) -> torch.Tensor:
    """Return an array as a tensor; numpy knows bfloat16 and float8 as extensions only."""
    array = np.ascontiguousarray(array)
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"u{array.itemsize}")).view(getattr(torch, array.dtype.name))


def results_of(program: ExportedProgram) -> Iterator[tuple[str, fx.Node]]:
    """Yield every result that is a tensor by the name that `TorchValues` has for it."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            yield node.name, node
        elif isinstance(value, list | tuple):
            for i, entry in enumerate(value):
                if isinstance(entry, torch.Tensor):
                    yield f"{node.name}:{i}", node


class _Narrow(fx.Interpreter):
    """Keeps every result."""

    def __init__(self, module: fx.GraphModule, values: TorchValues) -> None:
        super().__init__(module)
        self._values = values

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self._values.results |= {name: tensor.detach() for name, tensor in tensors_of(n, result)}
        return result


class _Wide(fx.Interpreter):
    """Computes in float64, from torch's own results at the anchors."""

    def __init__(
        self,
        module: fx.GraphModule,
        values: TorchValues,
        anchors: Collection[str] | None,
        each: Callable[[str, torch.Tensor], None],
    ) -> None:
        super().__init__(module)
        self._values = values
        self._anchors = anchors
        self._each = each

    def run_node(self, n: fx.Node) -> Any:
        if n.op in ("placeholder", "output", "get_attr"):
            result = super().run_node(n)
            # Placeholders are in float64 already, constants of the graph are not.
            result = _wide(result) if n.op == "get_attr" else result
            for name, tensor in tensors_of(n, result) if n.op != "output" else ():
                self._each(name, tensor)
            return result
        try:
            result = _wide(self._in_float64(n))
        except Exception:  # noqa: BLE001 - an op without float64 is taken to be exact
            result = self._own(n)
        names = [name for name, _ in tensors_of(n, result)]
        if self._is_open(n) or any(self._reads_open(n, source) for source in n.all_input_nodes):
            self._values.undetermined.update([n.name, *names])
        elif self._has_ties(n):
            # Ties leave the sorted values as they are, and exchange indices; argsort has these
            # alone.
            self._values.undetermined.update(names[1:] or [n.name])
        for name, tensor in tensors_of(n, result):
            self._each(name, tensor.detach())
        return self._anchored(n, result)

    def _reads_open(self, n: fx.Node, source: fx.Node) -> bool:
        name = f"{source.name}:{n.args[1]}" if n.target is operator.getitem else source.name
        return name in self._values.undetermined and not self._is_anchor(name)

    def _is_open(self, n: fx.Node) -> bool:
        return draws(n.target, n.args, n.kwargs) or _name(n) in _UNINITIALIZED

    def _has_ties(self, n: fx.Node) -> bool:
        """Whether a sort has equal elements, whose order no operator promises."""
        if _name(n) not in _SORTS:
            return False
        args, _ = self.fetch_args_kwargs_from_env(n)
        ordered = args[0].reshape(-1) if args[0].dim() == 0 else args[0].sort(_sorted_dim(n))[0]
        return bool((ordered.diff(dim=_sorted_dim(n) if args[0].dim() else 0) == 0).any())

    def _is_anchor(self, name: str) -> bool:
        return self._anchors is None or name in self._anchors

    def _in_float64(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        # A dtype in the arguments, such as that of a cast to float32, would round the result again.
        args, kwargs = pytree.tree_map_only(torch.dtype, lambda d: WIDE.get(d, d), (args, kwargs))
        return getattr(self, n.op)(n.target, args, kwargs)

    def _own(self, n: fx.Node) -> Any:
        """Return torch's own result of a node, in float64."""
        results = self._values.results
        if n.name in results:
            return _wide(results[n.name])
        value = n.meta.get("val")
        count = len(value) if isinstance(value, list | tuple) else 0
        names = (f"{n.name}:{i}" for i in range(count))
        return [_wide(results[name]) for name in names if name in results]

    def _anchored(self, n: fx.Node, result: Any) -> Any:
        """Replace results by torch's own at the anchors, and always those that are not floats."""
        if isinstance(result, torch.Tensor):
            return self._start_of(n.name, result)
        if isinstance(result, list | tuple):
            return [
                self._start_of(f"{n.name}:{i}", x) if isinstance(x, torch.Tensor) else x
                for i, x in enumerate(result)
            ]
        return result

    def _start_of(self, name: str, ideal: torch.Tensor) -> torch.Tensor:
        result = self._values.results.get(name)
        if result is None:
            return ideal
        # Integers and booleans choose rows and branches: both executions must choose the same ones.
        exact = not is_floating(ideal)
        return widened(result) if exact or self._is_anchor(name) else ideal


def tensors_of(n: fx.Node, result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a node's result by the names that `TorchValues` has for them."""
    if isinstance(result, torch.Tensor):
        yield n.name, result
    elif isinstance(result, list | tuple):
        entries = enumerate(result)
        yield from ((f"{n.name}:{i}", x) for i, x in entries if isinstance(x, torch.Tensor))


# Their results are what the memory held before.
_UNINITIALIZED = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
_SORTS = {"sort": 1, "argsort": 1, "topk": 2}
"""Ops whose indices depend on the order of equal elements: the position of the dim."""


def _name(n: fx.Node) -> str:
    """Return ``sort`` for any overload of ``aten.sort``."""
    name = str(n.target) if isinstance(n.target, OpOverload) else ""
    return name.split(".")[1] if name.startswith("aten.") else ""


def _sorted_dim(n: fx.Node) -> int:
    # The overload `stable` has an argument of this name before the dim.
    place = _SORTS[_name(n)] + (str(n.target).endswith(".stable") and "stable" not in n.kwargs)
    dim = n.kwargs.get("dim", n.args[place] if place < len(n.args) else -1)
    return dim if isinstance(dim, int) else -1


def _wide(result: Any) -> Any:
    wide: Any = pytree.tree_map_only(torch.Tensor, widened, result)
    return wide


def leaves_of(
    program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the flat inputs of a program from its arguments.

    Raises:
        ComparisonError: If it has other keyword arguments.
    """
    tree = program.call_spec.in_spec
    names = tree.children()[1].context if tree is not None else tuple(kwargs)
    if set(names) != set(kwargs):
        raise ComparisonError(
            f"the exported program takes the keyword arguments {', '.join(names) or 'none'}, "
            f"got {', '.join(kwargs) or 'none'}"
        )
    leaves: list[Any] = pytree.tree_leaves((args, {name: kwargs[name] for name in names}))
    return leaves


def _input(
    program: ExportedProgram, spec: InputSpec, flat: Iterator[Any], states: Mapping[str, Any]
) -> Any:
    if spec.kind == InputKind.USER_INPUT:
        return next(flat)
    target = str(spec.target)
    # The states of an earlier call replace those of the export.
    for place in (states, program.state_dict, program.constants):
        if target in place:
            return place[target]
    return None
