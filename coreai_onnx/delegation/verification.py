"""Checks an exported program after a pass, and infers the types of what the pass changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature

from coreai_onnx.delegation.backends import HANDLE
from coreai_onnx.delegation.export_pass import inferred
from coreai_onnx.delegation.lowered_modules import with_lowered_modules
from coreai_onnx.errors import SpecViolationError, reason_of
from coreai_onnx.export.compat.torch_names import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    pytree,
)
from coreai_onnx.export.functionalize.in_place import mutates
from coreai_onnx.export.functionalize.replaced_graph import nodes_of, with_graph
from coreai_onnx.lower.walk.location import where_of

_NUMBER_MODULES = ("_operator", "math")
"""Modules of the functions that a program may apply to symbolic numbers."""


def verified(program: ExportedProgram, changed: fx.GraphModule, name: str) -> ExportedProgram:
    """Return a program with the graph that a pass made, after a check of what the pass changed.

    The check computes dtypes and shapes of changed nodes and of all nodes after them, so a pass
    need not set ``meta["val"]``.

    Args:
        program: The program before the pass.
        changed: The result of the pass; its nodes get their types.
        name: The name of the pass, for messages.

    Raises:
        SpecViolationError: If a node is not a functional operator of ``torch.ops`` or does not
            accept its arguments, or the pass changed the inputs or the number of outputs.
    """
    # Before the lint and the check, whose messages name nodes.
    _keep_input_names(program, changed.graph, name)
    try:
        changed.graph.lint()
    except Exception as error:  # lint has no error of its own
        raise SpecViolationError(f"pass {name} broke the graph: {reason_of(error)}") from error
    signature = _signature(program, changed.graph, name)
    _check_graph(program.graph_module, changed, name)
    changed.recompile()
    # Only what the pass added: handles of a backend's bytes must stay valid.
    number_nodes(changed)
    try:
        return with_lowered_modules(with_graph(program, changed, signature))
    except Exception as error:  # torch's own verifier
        raise SpecViolationError(f"pass {name}: {reason_of(error)}") from error


def number_nodes(root: fx.GraphModule) -> None:
    """Give operators without a debug handle the next number, from 1; copies keep theirs."""
    calls = [node for node in nodes_of(root) if node.op == "call_function"]
    last = max((node.meta.get(HANDLE, 0) for node in calls), default=0)
    for number, node in enumerate((n for n in calls if HANDLE not in n.meta), last + 1):
        node.meta[HANDLE] = number


def _check_graph(before: fx.GraphModule, after: fx.GraphModule, name: str) -> None:
    """Check and type a graph, inner graphs first."""
    inner = dict(before.named_children())
    for path, child in after.named_children():
        # Operators that take graphs have the types of these, which must be known first.
        if isinstance(child, fx.GraphModule):
            old = inner.get(path)
            _check_graph(old if isinstance(old, fx.GraphModule) else child, child, name)
    typed = {_key(node): node for node in before.graph.nodes} if before is not after else {}
    for node in after.graph.nodes:
        # What has the same operator and arguments has the same type: only the change is inferred.
        same = typed.get(_key(node))
        if same is not None and "val" in same.meta:
            node.meta["val"] = same.meta["val"]
        elif node.op not in ("placeholder", "output", "get_attr"):
            _check_node(node, name)


def _check_node(node: fx.Node, name: str) -> None:
    """Check a new or changed node, and set its type.

    Raises:
        SpecViolationError: If it is invalid.
    """
    if fault := _fault(node):
        raise _violation(node, name, fault)
    if isinstance(node.target, HigherOrderOperator):
        # The result of an operator with graphs cannot be inferred without running them.
        if "val" not in node.meta:
            raise _violation(node, name, "needs its type in meta['val']")
        return
    for argument in node.all_input_nodes:
        if "val" not in argument.meta and argument.op != "get_attr":
            raise _violation(node, name, f"its argument {argument.name} has no meta['val']")
    target: Any = node.target
    try:
        node.meta["val"] = inferred(target, node.args, node.kwargs, like=node.meta.get("val"))
    except Exception as error:  # an operator may raise anything for wrong arguments
        raise _violation(
            node, name, f"does not accept its arguments: {reason_of(error)}"
        ) from error


def _fault(node: fx.Node) -> str:
    """Return what is wrong with the target of a node, or an empty string."""
    if node.op != "call_function":
        return f"is a {node.op}; a program has only call_function nodes"
    if mutates(node):
        return "changes an argument in place; use the functional operator"
    if isinstance(node.target, OpOverload | OpOverloadPacket | HigherOrderOperator):
        return ""
    target: Any = node.target
    module = str(getattr(target, "__module__", ""))
    # Arithmetic on symbolic sizes is plain Python in exported programs.
    if module in _NUMBER_MODULES or getattr(target, "__name__", "").startswith("sym_"):
        return ""
    return "is not an operator of torch.ops"


def _violation(node: fx.Node, name: str, fault: str) -> SpecViolationError:
    place = where_of(node)
    at = f"\n  at {place}" if place.source or place.module else ""
    return SpecViolationError(
        f"pass {name} left an invalid node\n  {node.name} = {_text(node.target)}: {fault}{at}\n"
        "  the program is as it was before the pass"
    )


def _text(target: Any) -> str:
    if isinstance(target, OpOverload | OpOverloadPacket | HigherOrderOperator | str):
        return str(target)
    return str(getattr(target, "__qualname__", target))


def _key(node: fx.Node) -> tuple[Any, ...]:
    """Return what determines the type of a node; equal keys, equal types."""
    arguments = (node.args, node.kwargs)
    types = tuple(_type(n.meta.get("val")) for n in node.all_input_nodes)
    return node.name, node.op, _text(node.target), str(arguments), types


def _type(value: Any) -> str:
    return str([_leaf_type(leaf) for leaf in pytree.tree_leaves(value)])


def _leaf_type(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        # As text: comparing symbolic sizes would add guards to the program.
        return f"{leaf.dtype}{tuple(leaf.shape)}{leaf.device}"
    return str(leaf)


def _signature(program: ExportedProgram, graph: fx.Graph, name: str) -> ExportGraphSignature:
    """Return the signature with the names of the new outputs.

    Raises:
        SpecViolationError: If their number differs.
    """
    old = program.graph_signature
    results = list(_results(graph))
    if len(results) != len(old.output_specs):
        raise SpecViolationError(
            f"pass {name} changed the number of outputs of the program, "
            f"from {len(old.output_specs)} to {len(results)}"
        )
    specs = [
        replace(spec, arg=replace(spec.arg, name=result.name))
        if isinstance(result, fx.Node)
        else spec
        for spec, result in zip(old.output_specs, results, strict=True)
    ]
    return ExportGraphSignature(list(old.input_specs), specs)


def _keep_input_names(program: ExportedProgram, graph: fx.Graph, name: str) -> None:
    """Give the inputs the names of the signature; copies of a graph may rename them.

    Raises:
        SpecViolationError: If the inputs differ.
    """
    old = [node for node in program.graph.nodes if node.op == "placeholder"]
    new = [node for node in graph.nodes if node.op == "placeholder"]
    before, after = [str(n.target) for n in old], [str(n.target) for n in new]
    if before != after:
        raise SpecViolationError(
            f"pass {name} changed the inputs of the program\n"
            f"  before: {', '.join(before)}\n  after: {', '.join(after)}"
        )
    for original, node in zip(old, new, strict=True):
        node.name = original.name


def _results(graph: fx.Graph) -> Iterator[Any]:
    (output,) = (node for node in graph.nodes if node.op == "output")
    (values,) = output.args
    assert isinstance(values, Sequence)
    yield from values
