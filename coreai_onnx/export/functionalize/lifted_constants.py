"""Tensors that torch lifts as constants of a program, though the program may mutate them.

torch treats only registered buffers as state. A tensor in a plain attribute, for example in a cache
object, becomes a constant, even if it shares memory with a buffer.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind
from torch.multiprocessing.reductions import StorageWeakRef

from coreai_onnx.export.compat.torch_names import OpOverload, pytree
from coreai_onnx.export.functionalize.replaced_graph import copy_of, with_graph


@dataclass(frozen=True)
class LiftedConstants:
    """The constants of a program, by the names of their placeholders.

    Attributes:
        tensors: The tensors of the module.
        twins: The earlier placeholder of the same tensor, if there is one.
        overlaps: The earlier placeholder that shares memory in another way, if there is one.
        names: Their names as state, which differ from all names of buffers.
    """

    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    twins: Mapping[str, str] = field(default_factory=dict)
    overlaps: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


def lifted_constants(
    program: ExportedProgram, names: Mapping[int, str] | None = None
) -> LiftedConstants:
    """Return the constants of a program, and which of them share memory with buffers or each other.

    Args:
        program: The program.
        names: Names of tensors, by their id; others are named after their placeholders.
    """
    tensors: dict[str, torch.Tensor] = {}
    twins: dict[str, str] = {}
    overlaps: dict[str, str] = {}
    seen: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for spec in program.graph_signature.input_specs:
        held = program.state_dict if spec.target in program.state_dict else program.constants
        tensor, name = held.get(str(spec.target)), spec.arg.name
        if spec.kind not in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            continue
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            continue
        # All empty tensors have the address 0, and share nothing.
        others = seen.setdefault(_address(tensor), []) if tensor.numel() else []
        if spec.kind is InputKind.CONSTANT_TENSOR:
            tensors[name] = tensor
            # Another layout of the same memory must see its writes as well, but is not the same
            # tensor.
            same = [other for other, x in others if _lies_like(x, tensor)]
            if same:
                twins[name] = same[0]
            elif others:
                overlaps[name] = others[0][0]
        others.append((name, tensor))
    taken = {str(spec.target) for spec in program.graph_signature.input_specs}
    called = {name: (names or {}).get(id(x), "") for name, x in tensors.items()}
    for name, attribute in called.items():
        # torch puts this prefix before the name of every lifted constant.
        called[name] = name.removeprefix("c_") if not attribute or attribute in taken else attribute
        taken.add(called[name])
    return LiftedConstants(tensors, twins, overlaps, called)


def without_twins(program: ExportedProgram, constants: LiftedConstants) -> ExportedProgram:
    """Return the program with one input for each tensor: constants that are a buffer become it.

    Args:
        program: The program; it is not changed.
        constants: Its constants.
    """
    if not constants.twins:
        return program
    module = copy_of(program.graph_module)
    placeholders = {node.name: node for node in module.graph.nodes if node.op == "placeholder"}
    for name, first in constants.twins.items():
        placeholders[name].replace_all_uses_with(placeholders[first])
        module.graph.erase_node(placeholders[name])
    old = program.graph_signature
    inputs = [spec for spec in old.input_specs if spec.arg.name not in constants.twins]
    return with_graph(program, module, ExportGraphSignature(inputs, old.output_specs))


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _lies_like(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors that share memory have the same layout."""
    return (x.storage_offset(), x.dtype, x.shape, x.stride()) == (
        y.storage_offset(),
        y.dtype,
        y.shape,
        y.stride(),
    )


def values_sharing_memory(graph: fx.Graph, constants: LiftedConstants) -> dict[fx.Node, Any]:
    """Return fake values for constants and for the nodes that share memory with them.

    The values in a trace do not show this: there, a real tensor becomes a new fake tensor whenever
    an op takes it. The ops that take a constant are therefore run again.
    """
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    values: dict[fx.Node, Any] = {}
    for name in constants.tensors:
        node = placeholders[name]
        first = placeholders.get(constants.twins.get(name, constants.overlaps.get(name, "")))
        values[node] = _unlike_any(node) if first is None else values.get(first, _value(first))
    for node in graph.nodes if values else ():
        sources = [x for a in node.all_input_nodes for x in _tensors(values.get(a))]
        if sources and node.op == "call_function":
            value = _again(node, values)
            if any(_shares(x, y) for x in _tensors(value) for y in sources):
                values[node] = value
    return values


def mutated_constants(
    mutations: Iterable[fx.Node], graph: fx.Graph, constants: LiftedConstants
) -> list[str]:
    """Return the names of the constants that in-place ops mutate."""
    values = values_sharing_memory(graph, constants)
    changed = [node.all_input_nodes[0] for node in mutations if node.all_input_nodes]
    written = [x for node in changed for x in _tensors(values.get(node))]
    held = {node.name: x for node, value in values.items() for x in _tensors(value)}
    names = (name for name in constants.tensors if any(_shares(held[name], x) for x in written))
    return [constants.names[name] for name in names]


def _value(node: fx.Node) -> Any:
    return node.meta.get("val")


def _tensors(value: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def _unlike_any(node: fx.Node) -> torch.Tensor:
    """Return a fake tensor with separate memory; torch would run ops on the constant itself."""
    value = _value(node)
    with value.fake_mode:
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )


def _again(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    """Run a node on fake values; return None if it is not an op."""
    arguments: Any = (node.args, node.kwargs)
    args, kwargs = fx.map_arg(arguments, lambda n: values.get(n, _value(n)))
    if node.target is operator.getitem:
        return args[0][args[1]]
    if not isinstance(node.target, OpOverload):
        return None
    if torch.Tag.inplace_view in node.target.tags:  # it would modify the argument
        return args[0]
    mode = next(x.fake_mode for x in _tensors((args, kwargs)) if hasattr(x, "fake_mode"))
    with mode, torch.no_grad():
        return node.target(*args, **kwargs)


def _shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    first, second = (StorageWeakRef(t.untyped_storage()) for t in (x, y))
    return bool(first == second)
