"""In-place ops on tensors that nothing else sees, as the ops they are without ``_``.

torch makes a program functional by retracing the whole of it, ten milliseconds a node. Most
in-place ops of models need none of that: ``y = a + b; y += c`` changes what was made just now.
"""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch.export import ExportedProgram

aten = torch.ops.aten
_FRESH_THOUGH_COMPOSITE = frozenset(
    {
        aten.batch_norm.default,
        aten.conv1d.default,
        aten.conv2d.default,
        aten.conv3d.default,
        aten.layer_norm.default,
        aten.linear.default,
        aten.matmul.default,
    }
)
"""Ops that torch takes apart, and whose results share no memory with their arguments."""


def without_in_place(program: ExportedProgram) -> ExportedProgram:
    """Return the program with in-place ops replaced where nothing else sees the change.

        y = add(a, b); add_(y, c); mul(y, d)     becomes     y = add(a, b); z = add(y, c); mul(z, d)

    In-place ops on inputs, weights and views stay. The program that was given is not changed.
    """
    graph = _copy(program.graph_module.graph)
    if not _rewrite(graph):
        return program
    return ExportedProgram(
        root=fx.GraphModule(program.graph_module, graph),
        graph=graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _copy(graph: fx.Graph) -> fx.Graph:
    """Return a copy with the same names and meta data."""
    copied = fx.Graph()
    of: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        of[node] = copied.node_copy(node, of.__getitem__)
    return copied


def _rewrite(graph: fx.Graph) -> int:
    """Replace what can be replaced, in order, and return how many that were."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    count = 0
    for node in list(graph.nodes):
        functional = _without_underscore(node)
        if functional is None or not _is_alone(node, order):
            continue
        changed = node.args[0]
        with graph.inserting_before(node):
            new = graph.call_function(functional, node.args, node.kwargs)
        new.meta = dict(node.meta)
        order[new] = order[node]
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        changed.replace_all_uses_with(
            new, delete_user_cb=lambda user, at=order[new]: order[user] > at
        )
        count += 1
    return count


def _without_underscore(node: fx.Node) -> torch._ops.OpOverload | None:
    """Return the op that makes a new tensor where the node's op changes its first argument."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    name, overload = target._schema.name.partition("::")[2], target._schema.overload_name
    written = [a.alias_info is not None and a.alias_info.is_write for a in target._schema.arguments]
    if not name.endswith("_") or name.startswith("_") or sum(written) != 1 or not written[0]:
        return None
    packet = getattr(aten, name[:-1], None)
    found: torch._ops.OpOverload | None = getattr(packet, overload or "default", None)
    if found is None or found._schema.is_mutable:
        return None
    same = [a.name for a in found._schema.arguments] == [a.name for a in target._schema.arguments]
    return found if same and _keeps_the_dtype(node) else None


def _keeps_the_dtype(node: fx.Node) -> bool:
    """Whether the op without ``_`` gives the dtype of the tensor that is changed."""
    given = [a.meta.get("val") if isinstance(a, fx.Node) else a for a in node.args]
    target, *others = given
    if not isinstance(target, torch.Tensor):
        return False
    is_real = target.is_floating_point()
    tensors = [x for x in others if isinstance(x, torch.Tensor)]
    if not is_real and any(isinstance(x, float | torch.SymFloat) for x in others):
        return False
    wide = (torch.Tensor.is_floating_point, torch.Tensor.is_complex)
    return all(
        x.dtype == target.dtype or (is_real and not any(w(x) for w in wide)) for x in tensors
    )


def _is_alone(node: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Whether the graph made the tensor, no view of it came before, and it is no output."""
    changed = node.args[0]
    if not isinstance(changed, fx.Node) or not _is_fresh(changed):
        return False
    if any(user.op == "output" for user in (*changed.users, *node.users)):
        return False  # the program's signature knows outputs by their names
    before = [user for user in changed.users if order[user] < order[node]]
    return all(_makes_own_memory(user) for user in before)


def _is_fresh(node: fx.Node) -> bool:
    if node.target is not operator.getitem:
        return _makes_own_memory(node)
    source = node.args[0]
    if not isinstance(source, fx.Node) or not _makes_own_memory(source):
        return False
    return [user.args[1] for user in source.users].count(node.args[1]) == 1


def _makes_own_memory(node: fx.Node) -> bool:
    """Whether no result of a node shares memory with an argument."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    if target in _FRESH_THOUGH_COMPOSITE:
        return True
    shares = any(result.alias_info is not None for result in target._schema.returns)
    return not (shares or target._schema.is_mutable or target._can_decompose())
