"""Merges equal constants, and nodes that compute the same result."""
# ruff: noqa: ARG001 - every pass has the signature of a pass

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from coreai_onnx.model.standard.op_schemas import RANDOM_OPS
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import digest, fingerprint, is_lazy, nbytes
from coreai_onnx.passes.engine.edit import Edit, rewrites
from coreai_onnx.passes.engine.graphs import attribute_graphs, context_of, with_subgraphs
from coreai_onnx.passes.engine.match import STANDARD_DOMAINS, attribute_of, may_train
from coreai_onnx.passes.engine.why import Why


def merge_duplicate_constants(graph: gs.Graph, why: Why) -> int:
    """Two equal initializers or constants → the first of them, with its name.

    a = 1.5, b = 1.5, Add(x, a), Mul(y, b)     becomes     a = 1.5, Add(x, a), Mul(y, a)
    """
    edit, count = Edit(graph), 0
    candidates = [c for c in context_of(graph).constants if c.outputs and _is_plain(c)]
    for group in _equal_groups(candidates):
        first, *others = group
        for other in others:
            if edit.is_output(other):
                continue
            edit.replace(other, first)
            count += 1
    if count:
        constants = context_of(graph).constants
        constants[:] = [c for c in constants if c.outputs or edit.is_output(c)]
    edit.finish()
    return count


def _is_plain(constant: gs.Constant) -> bool:
    # Comparing lazy constants would compute them: weights that are rewritten as the file is
    # written.
    return np.dtype(constant.dtype).kind != "O" and not is_lazy(constant)


def _equal_groups(constants: Iterable[gs.Constant]) -> Iterable[list[gs.Constant]]:
    """Group by dtype and shape, then by a sample of the bytes, then by all bytes."""
    groups = [list(constants)]
    # The cheapest key comes first: nearly all weights differ in shape or in a few bytes, so that
    # hardly any is read from its file as a whole.
    for key in (_form, fingerprint, digest):
        groups = [part for group in groups for part in _split(group, key) if len(part) > 1]
    return groups


def _form(constant: gs.Constant) -> tuple[object, ...]:
    return np.dtype(constant.dtype).name, tuple(constant.shape)


def _split(
    group: list[gs.Constant], key: Callable[[gs.Constant], object]
) -> Iterable[list[gs.Constant]]:
    parts: dict[object, list[gs.Constant]] = {}
    for constant in group:
        parts.setdefault(key(constant), []).append(constant)
    return parts.values()


_SMALL = 1024
"""Larger attribute tensors compare equal only if they are the same object."""


@rewrites()
def merge_common_subexpressions(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Two nodes with equal op, inputs and attributes → the first, with its name and metadata.

    Cos(a) → b, Cos(a) → c, Mul(b, c)     becomes     Cos(a) → b, Mul(b, b)
    """
    pure = context_of(edit.graph).pure_calls
    first: dict[tuple[Any, ...], gs.Node] = edit.once(dict)
    # Branches and loop bodies have no key: they would have to be compared apart from the names of
    # their tensors.
    if attribute_graphs(node) or not _is_pure(node, pure):
        return False
    earlier = first.setdefault(_key(node), node)
    if earlier is node:
        return False
    outputs = zip(node.outputs, earlier.outputs, strict=True)
    pairs = [(old, new) for old, new in outputs if not old.is_empty()]
    if (
        not all(edit.can_replace(old, new) for old, new in pairs)
        or len({id(old) for old, _ in pairs if edit.is_output(old)}) > 1
    ):
        return why("both results are graph outputs", node)
    for old, new in pairs:
        edit.replace(old, new)
    edit.remove(node)
    return True


def _is_pure(node: gs.Node, pure_calls: frozenset[tuple[str, str]]) -> bool:
    """Whether equal inputs always give equal results."""
    if node.domain not in STANDARD_DOMAINS:
        return (node.domain, node.op) in pure_calls
    if node.op == "Dropout":
        return not may_train(node)
    if node.op == "BatchNormalization":
        return bool(attribute_of(node, "training_mode", 0) == 0)
    return node.op not in RANDOM_OPS


def pure_functions(functions: Iterable[gs.Function]) -> frozenset[tuple[str, str]]:
    """Return (domain, name) of the functions whose bodies call nothing but pure ops."""
    bodies = {(f.domain, f.name): f for f in functions}
    # All functions count as pure until one of them calls an impure op, which then spreads to its
    # callers. A search from each function would visit shared callees again and again.
    every = frozenset(bodies)
    callers: dict[tuple[str, str], list[tuple[str, str]]] = {}
    waiting: list[tuple[str, str]] = []
    for call, body in bodies.items():
        nodes = [node for graph in with_subgraphs(body) for node in graph.nodes]
        if not all(_is_pure(node, every) for node in nodes):
            waiting.append(call)
        for inner in {(node.domain or "", node.op) for node in nodes} & every:
            callers.setdefault(inner, []).append(call)
    impure: set[tuple[str, str]] = set()
    while waiting:
        call = waiting.pop()
        if call not in impure:
            impure.add(call)
            waiting += callers.get(call, ())
    return every - impure


def _key(node: gs.Node) -> tuple[Any, ...]:
    origin = node.origin
    return (
        node.domain or "",
        node.op,
        # Functions that differ in the overload alone may have different bodies.
        origin.overload if origin is not None else "",
        tuple("" if tensor.is_empty() else id(tensor) for tensor in node.inputs),
        # A node without an output cannot stand for one whose output is read.
        tuple(tensor.is_empty() for tensor in node.outputs),
        tuple(sorted((name, _frozen(value)) for name, value in node.attrs.items())),
    )


def _frozen(value: Any) -> str:
    """Return a text that is equal only for equal attribute values: 0, 0.0, -0.0, nan differ."""
    if isinstance(value, float):
        return f"float {struct.pack('<d', value).hex()}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_frozen(item) for item in value)}]"
    if isinstance(value, gs.Node.AttributeRef):
        return f"attribute {value.name}"
    if isinstance(value, gs.Constant):
        if nbytes(value) <= _SMALL and np.dtype(value.dtype).kind != "O":
            return f"tensor {np.dtype(value.dtype).name} {value.shape} {digest(value).hex()}"
        return f"tensor at {id(value)}"
    if isinstance(value, int | str | bytes):
        return f"{type(value).__name__} {value!r}"
    return f"object at {id(value)}"
