"""A graph that is cut at every value that torch knows, so that each region can be checked alone.

A *region* is a value and the nodes that compute it from values that torch knows. In the cut graph,
each of these values is an input, which is fed with torch's own result, and an output, which the
region computes. One run of the cut graph runs all regions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from coreai_onnx.debugging.difference import Array
from coreai_onnx.model.python.structure import operands

COMPUTED = "#computed"
"""Suffix of the name of a value that a region computes."""


@dataclass(frozen=True)
class Region:
    """The nodes that compute a value from values that torch knows.

    Attributes:
        value: Name of the value in the model.
        nodes: Positions of the nodes in the main graph, in order.
        inputs: Names of the values that the nodes read and torch knows.
        results: Position and output index of each result of these nodes that the value depends on.
    """

    value: str
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    results: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class CutGraph:
    """A cut model and its regions.

    Attributes:
        model: The cut model; it shares the weights of the original.
        regions: The regions in graph order.
    """

    model: ir.Model
    regions: tuple[Region, ...]

    def alone(self, regions: Iterable[Region]) -> ir.Model:
        """Return a model of some regions only."""
        chosen = list(regions)
        read = {name for region in chosen for name in region.inputs}
        computed = {region.value + COMPUTED for region in chosen}
        whole = self.model.graph
        inputs = [value for value in whole.inputs if value.name in read]
        outputs = [value for value in whole.outputs if value.name in computed]
        graph = ir.convenience.extract(whole, inputs, outputs)
        functions = [function.clone() for function in self.model.functions.values()]
        model = ir.Model(graph, ir_version=self.model.ir_version, functions=functions)
        RemoveUnusedFunctionsPass()(model)
        return model


def cut(model: ir.Model, feeds: Mapping[str, Array]) -> CutGraph:
    """Cut a model at values.

    Args:
        model: The model; it is not changed.
        feeds: torch's results by value name. A value whose type in the model differs is not cut.
    """
    copy = model.clone()
    # It describes states and sizes of inputs that the cut graph does not have.
    copy.metadata_props.clear()
    graph = copy.graph
    at = {node: index for index, node in enumerate(graph)}
    values = {value.name or "": value for node in at for value in node.outputs}
    cuts = {
        name: value for name, value in values.items() if name in feeds and fits(value, feeds[name])
    }
    inputs = set(graph.inputs)
    regions = [_region(name, value, cuts, inputs, at) for name, value in cuts.items()]
    for value in graph.inputs:
        name = value.name or ""
        # With a default in the file an input is optional, and would not be fed.
        if name in graph.initializers:
            del graph.initializers[name]
        if name in feeds:
            value.shape = ir.Shape(feeds[name].shape)
    graph.outputs.clear()
    for name, value in cuts.items():
        _separate(graph, value, feeds[name])
    return CutGraph(copy, tuple(regions))


def _separate(graph: ir.Graph, value: ir.Value, array: Array) -> None:
    """Make a value an output, and let its readers read an input of its name."""
    name = value.name
    dtype = ir.DataType.from_numpy(array.dtype)
    fed = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(array.shape))
    value.replace_all_uses_with(fed)
    if fed.uses():
        graph.inputs.append(fed)
    value.name = f"{name}{COMPUTED}"
    # No shape: the difference is to say that a wrong region computes another one.
    value.type, value.shape = ir.TensorType(dtype), None
    graph.outputs.append(value)


def fits(value: ir.Value, array: Array) -> bool:
    """Return whether the type of a value, as far as the model has it, is that of an array."""
    if value.dtype is not None and value.dtype != ir.DataType.from_numpy(array.dtype):
        return False
    if value.shape is None:
        return True
    sizes = value.shape.dims
    return len(sizes) == array.ndim and all(
        not isinstance(size, int) or size == actual
        for size, actual in zip(sizes, array.shape, strict=True)
    )


def _region(
    name: str,
    value: ir.Value,
    cuts: Mapping[str, ir.Value],
    inputs: Collection[ir.Value],
    at: Mapping[ir.Node, int],
) -> Region:
    nodes: dict[ir.Node, None] = {}
    results: set[tuple[int, int]] = set()
    read: dict[str, None] = {}
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if current is not value and (cuts.get(current.name or "") is current or current in inputs):
            read[current.name or ""] = None
            continue
        node = current.producer()
        # Weights have no producer, and values of subgraphs are not made in the main graph.
        if node is None or node not in at:
            continue
        results.add((at[node], current.index() or 0))
        if node not in nodes:
            nodes[node] = None
            waiting += operands(node)
    positions = tuple(sorted(at[node] for node in nodes))
    return Region(name, positions, tuple(read), frozenset(results))
