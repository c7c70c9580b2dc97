"""Differences of two models, as text and as a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal, TypeVar

import onnx_ir as ir

from coreai_onnx.debugging.diff.fingerprints import (
    attribute_texts,
    graph_digest,
    local_digest,
    node_label,
    tensor_digest,
)
from coreai_onnx.errors import LoadError, failures_as
from coreai_onnx.messages import render
from coreai_onnx.model.files.program_files import load_models
from coreai_onnx.model.interface import interface
from coreai_onnx.model.inventory import op_histogram, op_name
from coreai_onnx.model.pages.frame import tables_page
from coreai_onnx.model.provenance.debug_info import SCOPE
from coreai_onnx.runtime.sessions.entrypoints import HasModels

SECTIONS = ("model", "interface", "operators", "functions", "nodes", "weights")
Kind = Literal["added", "removed", "changed", "renamed"]
_HEADER = ("", "name", "before", "after")
_Named = TypeVar("_Named")
_Models = Mapping[str, ir.Model]


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        section: One of ``SECTIONS``.
        kind: The kind of change from the first model to the second.
        name: Name of the input, operator, function, node or weight.
        before: Value in the first model; empty if it was added.
        after: Value in the second model; empty if it was removed.
    """

    section: str
    kind: Kind
    name: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class ModelDiff:
    """The differences of two models; prints as tables, one per section.

    Attributes:
        changes: In the order of ``SECTIONS``.
    """

    changes: tuple[Change, ...]

    @property
    def same(self) -> bool:
        """Whether the models have no differences."""
        return not self.changes

    def section(self, name: str) -> tuple[Change, ...]:
        """Return the changes of one section."""
        return tuple(change for change in self.changes if change.section == name)

    def __str__(self) -> str:
        """Return every change as text."""
        return self.text()

    def text(self, limit: int | None = None) -> str:
        """Return the changes as text, at most ``limit`` per section."""
        if self.same:
            return "the models are the same"
        parts = []
        for name in SECTIONS:
            changes = self.section(name)
            if not changes:
                continue
            shown = changes[:limit]
            rows = [_cells(change) for change in shown]
            part = f"{name}: {len(changes)}\n" + render(_HEADER, rows, indent="  ")
            if len(shown) < len(changes):
                part += f"\n  … and {len(changes) - len(shown)} more"
            parts.append(part)
        return "\n\n".join(parts)


def diff_models(
    before: str | PathLike[str] | HasModels,
    after: str | PathLike[str] | HasModels,
    *,
    weights: bool = True,
) -> ModelDiff:
    """Compare two models by structure and contents; names of intermediate values are ignored.

    Args:
        before: A file, or a program.
        after: A file, or a program.
        weights: Whether to read and compare the contents of weights; if not, data files may be
            missing.

    Returns:
        The differences of every entrypoint that both have, and the entrypoints that only one has.

    Raises:
        LoadError: If a file is missing, broken or not an ONNX model.
    """
    first, second = (
        item.models if isinstance(item, HasModels) else load_models(Path(item), data=weights)
        for item in (before, after)
    )
    with failures_as(LoadError, "the models cannot be compared"):
        return _model_diff(first, second, weights=weights)


def _model_diff(first: _Models, second: _Models, *, weights: bool) -> ModelDiff:
    changes = []
    for name, old, new in _aligned(first, second):
        if old is None or new is None:
            kind: Kind = "added" if old is None else "removed"
            changes.append(Change("model", kind, f"entrypoint {name}"))
        else:
            changes += _diff(old, new, weights=weights)
    order = {section: position for position, section in enumerate(SECTIONS)}
    return ModelDiff(tuple(sorted(changes, key=lambda change: order[change.section])))


def _diff(old: ir.Model, new: ir.Model, *, weights: bool) -> list[Change]:
    changes = [
        *_changes("model", _properties(old), _properties(new)),
        *_changes("interface", _signature(old), _signature(new)),
        *_changes("operators", _counts(old), _counts(new)),
        *_changes("functions", _functions(old), _functions(new), lambda f: f[1]),
        *_nodes(old.graph, new.graph),
    ]
    if weights:
        changes += _weights(old, new)
    return changes


def _properties(model: ir.Model) -> dict[str, str]:
    facts = {"IR version": str(model.ir_version)}
    facts |= {f"opset {domain or 'ai.onnx'}": str(v) for domain, v in model.opset_imports.items()}
    return facts | {f"metadata {key}": value for key, value in model.metadata_props.items()}


def _signature(model: ir.Model) -> dict[str, str]:
    sides = interface(model)
    groups = {"input": sides.inputs, "state": sides.states, "output": sides.outputs}
    return {
        f"{kind} {tensor.name}": tensor.type_text for kind, ts in groups.items() for tensor in ts
    }


def _counts(model: ir.Model) -> dict[str, str]:
    return {name: f"{count}x" for name, count in op_histogram(model).items()}


def _changes(
    section: str,
    old: Mapping[str, _Named],
    new: Mapping[str, _Named],
    text: Callable[[_Named], str] = str,
) -> list[Change]:
    """Return the changes of named things, which ``text`` describes."""
    changes = []
    for name, before, after in _aligned(old, new):
        if before != after:
            kind: Kind = "added" if before is None else "removed" if after is None else "changed"
            texts = ("" if one is None else text(one) for one in (before, after))
            changes.append(Change(section, kind, name, *texts))
    return changes


def _functions(model: ir.Model) -> dict[str, tuple[str, str]]:
    """Return the digest and the size of the functions."""
    return {
        op_name(f.domain, f.name): (graph_digest(f), f"{len(f)} nodes")
        for f in model.functions.values()
    }


def _nodes(old: ir.Graph, new: ir.Graph) -> list[Change]:
    """Match nodes by name and op, then by digest, then by scope; return the differences."""
    left, right = list(old), list(new)
    pairs: list[tuple[ir.Node, ir.Node]] = []
    # From the surest to the weakest: a pair that one key has matched is not there for the next.
    keys: tuple[Callable[[ir.Node], object], ...] = (
        lambda node: (node.name, node_label(node)) if node.name else None,
        lambda node: (local_digest(node), _scope(node)),
        local_digest,
        lambda node: (node_label(node), _scope(node)),
    )
    for key in keys:
        matched = _paired(left, right, key)
        pairs += matched
        taken = {id(node) for pair in matched for node in pair}
        left = [node for node in left if id(node) not in taken]
        right = [node for node in right if id(node) not in taken]
    changes = [Change("nodes", "removed", _title(node), node_label(node)) for node in left]
    changes += [Change("nodes", "added", _title(node), "", node_label(node)) for node in right]
    partner = {id(a): id(b) for a, b in pairs}
    for a, b in pairs:
        changes += _node_changes(a, b, partner)
    return changes


def _node_changes(a: ir.Node, b: ir.Node, partner: Mapping[int, int]) -> list[Change]:
    changes = []
    for name, before, after in _aligned(attribute_texts(a), attribute_texts(b)):
        if before != after:
            title = f"{_title(a)} [{name}]"
            changes.append(Change("nodes", "changed", title, before or "–", after or "–"))
    # The nodes of the first model are replaced by their partners, so that both lists are of the
    # second.
    if [_source(v, partner) for v in a.inputs] != [_source(v, {}) for v in b.inputs]:
        names = [", ".join(v.name or "?" if v else "–" for v in n.inputs) for n in (a, b)]
        changes.append(Change("nodes", "changed", f"{_title(a)} inputs", *names))
    return changes


def _source(value: ir.Value | None, partner: Mapping[int, int]) -> object:
    """Return the origin of a value in a form that is comparable between two graphs.

    Weights are not distinguished here; they are compared separately.
    """
    if value is None:
        return None
    node = value.producer()
    if node is None:
        return "weight" if value.is_initializer() else value.name
    return partner.get(id(node), id(node)), value.index()


def _weights(old: ir.Model, new: ir.Model) -> list[Change]:
    sides = []
    for model in (old, new):
        tensors = {n: v.const_value for n, v in model.graph.initializers.items() if v.const_value}
        # Digests, because the weights of two models may not fit into memory at once.
        sides.append({name: (_shape(t), tensor_digest(t)) for name, t in tensors.items()})
    before, after = sides
    gone = {name: text for name, text in before.items() if name not in after}
    come = {name: text for name, text in after.items() if name not in before}
    changes = []
    same: dict[object, list[str]] = defaultdict(list)
    # Reversed, because pop takes the last: of several equal weights, the first becomes the first.
    for name, text in reversed(come.items()):
        same[text].append(name)
    for name, text in list(gone.items()):
        if same[text]:
            again = same[text].pop()
            changes.append(Change("weights", "renamed", name, name, again))
            del gone[name], come[again]
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            texts = [f"{shape} {digest[:12]}" for shape, digest in (before[name], after[name])]
            changes.append(Change("weights", "changed", name, *texts))
    changes += [Change("weights", "removed", name, shape) for name, (shape, _) in gone.items()]
    changes += [Change("weights", "added", name, "", shape) for name, (shape, _) in come.items()]
    # A set of keys has no order that would be the same in every run.
    return sorted(changes, key=lambda change: (change.kind, change.name))


def _shape(tensor: ir.TensorProtocol) -> str:
    return f"{tensor.dtype.name.lower()}{list(tensor.shape)}"


def _title(node: ir.Node) -> str:
    outputs = ", ".join(value.name or "?" for value in node.outputs)
    return node.name or f"({node_label(node)} → {outputs})"


def _scope(node: ir.Node) -> str:
    return node.metadata_props.get(SCOPE, "")


def _paired(
    left: Iterable[ir.Node], right: Iterable[ir.Node], key: Callable[[ir.Node], object]
) -> list[tuple[ir.Node, ir.Node]]:
    """Match the nodes of equal keys in order: the first with the first, and so on."""
    waiting: dict[object, list[ir.Node]] = defaultdict(list)
    for node in right:
        waiting[key(node)].append(node)
    for nodes in waiting.values():
        nodes.reverse()
    return [
        (node, waiting[name].pop())
        for node in left
        if (name := key(node)) is not None and waiting[name]
    ]


def _aligned(
    old: Mapping[str, _Named], new: Mapping[str, _Named]
) -> list[tuple[str, _Named | None, _Named | None]]:
    """Return every name in either mapping with both values."""
    return [(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]


def page(diff: ModelDiff, before: str, after: str) -> str:
    """Return the differences of two models, whose names are given, as an HTML page."""
    rows = {name: [_cells(change) for change in diff.section(name)] for name in SECTIONS}
    return tables_page(
        f"{before} → {after}",
        _HEADER,
        {name: cells for name, cells in rows.items() if cells},
        empty="The models are the same.",
    )


def _cells(change: Change) -> tuple[str, str, str, str]:
    return change.kind, change.name, change.before, change.after
