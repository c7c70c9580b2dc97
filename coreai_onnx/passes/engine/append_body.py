"""Composition of two function bodies."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.context import attribute_graphs, context_of


def append_body(first: gs.Function, second: gs.Function) -> bool:
    """Let a function also compute another one of its result; return False if that is impossible.

    first(a, b) → s, second(x, w) → y     becomes     first(a, b, w) → y, s

    The nodes are copied, so that ``second`` stays as it is. Types are not copied: a body holds for
    every dtype and shape. The metadata are those of ``second``.

    Args:
        first: A function with one output, which is changed.
        second: A function whose first input is that output, and whose nodes have no subgraphs.
    """
    if any(attribute_graphs(node) for node in second.nodes):
        return False
    names = context_of(first).names
    (joint,) = first.outputs
    copies: dict[int, gs.Tensor] = {id(second.inputs[0]): joint}

    def copied(tensor: gs.Tensor) -> gs.Tensor:
        if tensor.is_empty():
            return gs.Variable.empty()
        if id(tensor) not in copies:
            name = names.claim(tensor.name)
            constant = isinstance(tensor, gs.Constant)
            copies[id(tensor)] = gs.Constant(name, tensor.values) if constant else gs.Variable(name)
        return copies[id(tensor)]

    first.inputs.extend(copied(tensor) for tensor in second.inputs[1:])
    outputs = [copied(tensor) for tensor in second.outputs]
    for node in second.nodes:
        inputs, results = ([copied(t) for t in tensors] for tensors in (node.inputs, node.outputs))
        name = names.claim(node.name)
        first.nodes.append(gs.Node(node.op, name, dict(node.attrs), inputs, results, node.domain))
    first.outputs = [*outputs, joint]
    for name, default in second.attrs.items():
        first.attrs.setdefault(name, default)
    made, read = context_of(first).source, context_of(second).source
    if made is not None and read is not None:
        made.metadata_props.clear()
        made.metadata_props.update(read.metadata_props)
    return True
