"""Delegates the parts of a program that a partitioner selects."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.passes.tools_common import legalize_graph

from coreai_onnx.delegation.backends import (
    CompileSpec,
    check_id,
    described,
    processed,
    settings_of,
)
from coreai_onnx.delegation.parts import part_of
from coreai_onnx.delegation.verification import verified
from coreai_onnx.errors import CoreaiError, DelegationError
from coreai_onnx.export.externalize.delegate_call import DELEGATE, Delegate, delegate_of, is_number
from coreai_onnx.export.functionalize.replaced_graph import copy_of, nodes_of, with_graph

TAG = "delegation_tag"
"""Key of a node's ``meta``: the tag of the part that the node belongs to."""


@dataclass(frozen=True)
class DelegationSpec:
    """What processes a part.

    Attributes:
        backend_id: The id of a registered backend.
        compile_specs: Settings for it.
    """

    backend_id: str
    compile_specs: Sequence[CompileSpec] = ()

    def __post_init__(self) -> None:
        """Check the types.

        Raises:
            DelegationError: If the id is not text, or a setting is not a `CompileSpec`.
        """
        check_id(self.backend_id)
        settings_of(self.compile_specs)


@dataclass(frozen=True)
class PartitionResult:
    """The result of a partitioner.

    Attributes:
        tagged_exported_program: The program that the partitioner was given; ``meta`` of the nodes
            of a part has its tag, under ``delegation_tag``.
        partition_tags: Tag to what processes the part.
        unsupported: Nodes that the partitioner left out, by name, with the reasons.
    """

    tagged_exported_program: ExportedProgram
    partition_tags: Mapping[str, DelegationSpec]
    unsupported: Mapping[str, str] = field(default_factory=dict)


class Partitioner(ABC):
    """Selects the parts of a program that backends process."""

    @abstractmethod
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag nodes of a program.

        Args:
            exported_program: A copy of the program. Only ``meta`` may be changed. Tags that it had
                before do not count.
        """


def delegated(program: ExportedProgram, partitioner: Partitioner) -> ExportedProgram:
    """Return a program in which the tagged parts are calls of delegates.

    Args:
        program: The program; it is not changed.
        partitioner: Tags the parts.

    Raises:
        DelegationError: If the partitioner raises, changes the graph, tags a node twice or uses an
            unknown tag, a part makes a cycle or has a result that is not a tensor, or a backend
            fails.
    """
    name = type(partitioner).__name__
    # A copy, so that a partitioner that fails or cheats leaves the program as it is.
    result = _partitioned(with_graph(program, copy_of(program.graph_module)), partitioner, name)
    tagged = result.tagged_exported_program
    # A partitioner that rewrites the graph would escape the check of passes.
    if _content(tagged.graph_module) != _content(program.graph_module):
        raise DelegationError(
            f"the partitioner {name} changed the graph; it may only set meta[{TAG!r}]\n"
            "  change programs with EdgeProgramManager.transform"
        )
    for module in [m for m in tagged.graph_module.modules() if isinstance(m, fx.GraphModule)]:
        _delegate_parts(tagged, module, result.partition_tags, name)
    return verified(program, tagged.graph_module, name)


def _partitioned(program: ExportedProgram, partitioner: Partitioner, name: str) -> PartitionResult:
    """Run a partitioner on a copy of a program."""
    for node in nodes_of(program.graph_module):
        node.meta.pop(TAG, None)  # of a partitioner that was asked for its reasons
        # A second tag would overwrite the first without a trace; a dict that watches finds the
        # line.
        node.meta = _Meta(node)
    try:
        result: PartitionResult = partitioner.partition(program)
    except CoreaiError:
        raise
    except Exception as error:  # a user's partitioner may raise anything
        raise DelegationError(
            f"the partitioner {name} raised {type(error).__name__}: {error}\n"
            "  the program is unchanged"
        ) from error
    _check_result(result, name)
    for node in nodes_of(result.tagged_exported_program.graph_module):
        # Later steps copy ``meta``, and the watching dict holds its node.
        node.meta = dict(node.meta)
    return result


def _check_result(result: Any, name: str) -> None:
    """Raise DelegationError if a partitioner returned something else than it should."""
    returned = type(result).__name__
    if isinstance(result, PartitionResult):
        tags: Any = result.partition_tags
        if not isinstance(result.tagged_exported_program, ExportedProgram):
            returned = f"PartitionResult without a program: {result.tagged_exported_program!r:.40}"
        elif not isinstance(tags, Mapping) or not all(
            isinstance(spec, DelegationSpec) for spec in tags.values()
        ):
            returned = f"PartitionResult whose tags do not map to a DelegationSpec: {tags!r:.40}"
        else:
            return
    raise DelegationError(
        f"the partitioner {name} returned {returned}\n"
        "  return PartitionResult(tagged_exported_program, partition_tags)"
    )


class _Meta(dict[str, Any]):
    """The ``meta`` of a node that a partitioner tags once.

    Raises:
        DelegationError: If the node gets a second tag.
    """

    def __init__(self, node: fx.Node) -> None:
        super().__init__(node.meta)
        self.node = node

    def __setitem__(self, key: str, value: Any) -> None:
        first = self.get(TAG, value)
        if key == TAG and first != value:
            raise DelegationError(
                f"the parts {first!r} and {value!r} overlap: a node belongs to one part\n"
                f"{described([self.node])}\n  the program is unchanged"
            )
        super().__setitem__(key, value)


def delegates_of(program: ExportedProgram) -> list[Delegate]:
    """Return the delegates that a program calls, in the order of their calls."""
    calls = (node for node in nodes_of(program.graph_module) if node.target is DELEGATE)
    return [delegate_of(str(node.args[2])) for node in calls]


def _delegate_parts(
    program: ExportedProgram, module: fx.GraphModule, tags: Mapping[str, DelegationSpec], name: str
) -> None:
    """Replace the parts of one graph by calls of their delegates."""
    parts = _parts(module.graph, tags, name)
    for tag, nodes in parts.items():
        # Part by part: a call that replaces a part is an input of the next.
        _check_part(tag, nodes)
        _check_acyclic(tag, nodes)
        _replace(program, module, nodes, tags[tag])
    if parts:
        # The call stands after the last node of a part, which may be behind nodes that read an
        # earlier result.
        legalize_graph(module)
        module.recompile()
    for node in module.graph.nodes:
        node.meta.pop(TAG, None)


def _content(module: fx.GraphModule) -> list[str]:
    return [f"{n.name} {n.op} {n.target} {n.args} {n.kwargs}" for n in nodes_of(module)]


def _parts(
    graph: fx.Graph, tags: Mapping[str, DelegationSpec], name: str
) -> dict[str, list[fx.Node]]:
    """Return the nodes of each part, in the order of the graph.

    Raises:
        DelegationError: If a node has a tag without a spec.
    """
    parts: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        tag = node.meta.get(TAG)
        if tag is None:
            continue
        if not isinstance(tag, str) or tag not in tags:
            raise DelegationError(
                f"the partitioner {name} uses the tag {tag!r}, which partition_tags lacks\n"
                f"{described([node])}"
            )
        if node.op == "call_function":  # weights may be tagged; they are inputs of the part
            parts.setdefault(tag, []).append(node)
    return parts


def unfit_nodes(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the nodes that keep a part from being a function of tensors and sizes.

    Their results are not tensors but are read outside of the part, or they read such a result.
    """
    inside = set(nodes)
    return [
        node
        for node in nodes
        if (not _is_tensor(node) and not set(node.users) <= inside)
        or any(
            # Constants are copied into a part.
            source not in inside and source.op != "get_attr" and not _is_argument(source)
            for source in node.all_input_nodes
        )
    ]


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_argument(node: fx.Node) -> bool:
    return _is_tensor(node) or is_number(node)


def _check_part(tag: str, nodes: Sequence[fx.Node]) -> None:
    """Raise for nodes that cannot be in a part."""
    if unfit := unfit_nodes(nodes):
        raise DelegationError(
            f"the part {tag!r} has results that are not tensors\n{described(unfit)}\n"
            "  the program is unchanged"
        )


def _check_acyclic(tag: str, nodes: Sequence[fx.Node]) -> None:
    """Raise if a result of a part leads back to one of its inputs through other nodes."""
    inside = set(nodes)
    # Each node once: without it, diamonds would make the search exponential.
    reached: set[fx.Node] = set()
    waiting = [user for node in nodes for user in node.users if user not in inside]
    while waiting:
        node = waiting.pop()
        if node in reached:
            continue
        reached.add(node)
        for user in node.users:
            if user in inside:
                raise DelegationError(
                    f"the part {tag!r} makes a cycle: it reads what is computed from its results\n"
                    f"{described([node, user])}\n  the program is unchanged"
                )
            waiting.append(user)


def _replace(
    program: ExportedProgram, module: fx.GraphModule, nodes: Sequence[fx.Node], spec: DelegationSpec
) -> None:
    """Replace the nodes of a part by a call of its delegate."""
    part = part_of(program, module, nodes)
    delegate = processed(spec.backend_id, part.program, spec.compile_specs)
    graph = module.graph
    # The schema of the operator has one list for each kind.
    numbers = [n for n in part.inputs if is_number(n)]
    tensors = [n for n in part.inputs if n not in numbers]
    # All inputs precede the last node of the part.
    with graph.inserting_after(nodes[-1]):
        call = graph.call_function(DELEGATE, (tensors, numbers, delegate.tag))
    call.meta["delegate"] = delegate  # keeps it alive as long as the program
    call.meta["stack_trace"] = nodes[-1].meta.get("stack_trace")
    for number, output in enumerate(part.outputs):
        with graph.inserting_after(call):
            taken = graph.call_function(operator.getitem, (call, number))
        # With the tag, the result would count as a node of the part.
        taken.meta = {key: value for key, value in output.meta.items() if key != TAG}
        output.replace_all_uses_with(taken)
    # Readers first: a node that is read cannot be erased.
    for node in reversed(nodes):
        graph.erase_node(node)
