"""Merges linear layers of one input: queries, keys and values; gate and up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import joined_name
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.match import Dim, is_standard, shape_of
from coreai_onnx.passes.engine.why import Why


@dataclass
class _Projection:
    """One linear layer: the product, its bias, and the node that produces the result."""

    product: gs.Node
    weight: gs.Constant
    bias: gs.Constant | None
    last: gs.Node

    @property
    def columns(self) -> int:
        return int(self.weight.shape[1])


def merge_projections(graph: gs.Graph, why: Why) -> int:
    """MatMuls of one input with several weights → one MatMul and a Split.

    MatMul(x, q) → a, MatMul(x, k) → b, MatMul(x, v) → c
    becomes     MatMul(x, q+k+v) ─Split→ a, b, c

    Biases are concatenated too. The weights are concatenated when the model is written, one result
    at a time. A weight with another reader is left unchanged, so that it is stored once.
    """
    if context_of(graph).kind == "function":
        return 0  # in a function, weights are inputs
    edit, count = Edit(graph), 0
    # By input, dtype and rows of the weight: those that np.concatenate can join.
    groups: dict[tuple[int, str, int], list[_Projection]] = {}
    for node in graph.nodes:
        projection = _projection(node, edit, why)
        if projection is not None:
            key = (
                id(node.inputs[0]),
                str(np.dtype(projection.weight.dtype)),
                projection.weight.shape[0],
            )
            groups.setdefault(key, []).append(projection)
    for group in groups.values():
        if len(group) > 1:
            _merge(edit, group)
            count += len(group) - 1
    edit.finish()
    return count


def _projection(node: gs.Node, edit: Edit, why: Why) -> _Projection | None:
    if not is_standard(node, "MatMul") or isinstance(node.inputs[0], gs.Constant):
        return None
    weight = node.inputs[1]
    siblings = [
        other
        for other in node.inputs[0].outputs
        if is_standard(other, "MatMul") and isinstance(other.inputs[1], gs.Constant)
    ]
    # Before any near miss: a layer that has its input for itself is not one.
    if not isinstance(weight, gs.Constant) or len(weight.shape) != 2 or len(siblings) < 2:
        return None
    # The kind of ml_dtypes' bfloat16 is V.
    if np.dtype(weight.dtype).kind != "f" and np.dtype(weight.dtype).name != "bfloat16":
        return None
    if len(weight.outputs) > 1 or edit.is_output(weight):
        why("something else reads the weight", node)
        return None
    bias, last = None, node
    result = node.outputs[0]
    if (reader := edit.only_reader(result)) is not None:
        others = [t for t in reader.inputs if t is not result]
        if (
            is_standard(reader, "Add")
            and len(others) == 1
            and isinstance(others[0], gs.Constant)
            and list(others[0].shape) == [weight.shape[1]]
            and len(others[0].outputs) == 1
        ):
            bias, last = others[0], reader
    return _Projection(node, weight, bias, last)


def _merge(edit: Edit, group: list[_Projection]) -> None:
    """Make the first layer compute all of them; a Split after it produces the results."""
    first = group[0]
    sizes = [one.columns for one in group]
    weights = [one.weight for one in group]
    joined = edit.lazy(
        joined_name([w.name for w in weights]),
        lambda *parts: np.concatenate(parts, axis=1),
        weights,
        [weights[0].shape[0], sum(sizes)],
    )
    result, shape = first.product.outputs[0], shape_of(first.product.outputs[0])
    wide: list[Dim] | None = None if shape is None else [*shape[:-1], sum(sizes)]
    factors = [first.product.inputs[0], joined]
    whole = edit.add("MatMul", first.product, factors, result.dtype, wide)
    biases = [one.bias for one in group]
    present = [bias for bias in biases if bias is not None]
    if present:
        bias = _joined_biases(edit, biases, sizes)
        whole = edit.add("Add", first.product, [whole, bias], result.dtype, wide)
    results = [one.last.outputs[0] for one in group]
    lengths = edit.constant(f"{whole.name}_sizes", np.array(sizes, np.int64))
    edit.node("Split", first.product, [whole, lengths], outputs=results, axis=-1)
    for one in group:
        edit.remove(one.product)
        edit.remove(one.last)


def _joined_biases(edit: Edit, biases: list[gs.Constant | None], sizes: list[int]) -> gs.Constant:
    constants = [bias for bias in biases if bias is not None]
    present = [bias is not None for bias in biases]

    # One Add serves all layers, so a layer without a bias gets zeros.
    def join(*parts: np.ndarray) -> np.ndarray:
        rest = iter(parts)
        return np.concatenate(
            [
                next(rest) if here else np.zeros(size, parts[0].dtype)
                for here, size in zip(present, sizes, strict=True)
            ]
        )

    name = joined_name([bias.name for bias in constants])
    return edit.lazy(name, join, constants, [sum(sizes)])
