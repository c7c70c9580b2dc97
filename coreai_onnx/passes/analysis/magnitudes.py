"""Bounds of numbers that positions, sizes, ids and masks lead to: whether they fit a dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from coreai_onnx.passes.analysis.dataflow import ForwardAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.match import attribute_of, constant_of, dtype_of, is_standard

LARGEST_SIZE = float(1 << 23)
"""No axis is longer: a sum or difference of two positions is exact in float32. A mask of two axes
of this length would take 64 TiB."""
_VIEWS = """Abs Cast Expand Flatten Gather GatherElements GatherND Identity Neg ReduceMax ReduceMin
Reshape Slice Squeeze Tile Transpose Trilu Unsqueeze""".split()
_TRUE_OR_FALSE = """And Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Not Or Sign Xor
Sigmoid Tanh""".split()
_LOGARITHM = 104.0
"""The largest magnitude of a finite logarithm of a float32: ``-log(2**-149)``."""

Rule = Callable[[gs.Node, list[float]], float | None]


def _quotient(node: gs.Node, bounds: list[float]) -> float | None:
    divisor = constant_of(node.inputs[1], at_most=1)
    least = (
        0.0 if divisor is None else float(np.abs(divisor.astype(np.float64)).min(initial=np.inf))
    )
    return bounds[0] / least if least > 0 else None


def _of_range(node: gs.Node, bounds: list[float]) -> float | None:
    start, _, delta = (constant_of(tensor, at_most=1) for tensor in node.inputs)
    if start is None or delta is None:
        return max(bounds) if len(bounds) == 2 else None
    return abs(float(start.item())) + abs(float(delta.item())) * LARGEST_SIZE


def _filled(node: gs.Node, _: list[float]) -> float:
    value = attribute_of(node, "value", None)
    return 0.0 if value is None else float(np.abs(np.asarray(value.values)).max(initial=0))


RULES: dict[str, tuple[Rule, slice]] = {
    **{op: (lambda _, bounds: bounds[0], slice(1)) for op in _VIEWS},
    **{op: (lambda _, __: 1.0, slice(0)) for op in _TRUE_OR_FALSE},
    **{op: (lambda _, __: LARGEST_SIZE, slice(0)) for op in ("Shape", "Size", "ArgMax", "ArgMin")},
    **{op: (lambda _, bounds: max(bounds), slice(None)) for op in ("Concat", "Max", "Min")},
    **{op: (lambda _, bounds: bounds[0] + 1, slice(1)) for op in ("Ceil", "Floor", "Round")},
    **{op: (lambda _, bounds: sum(bounds), slice(2)) for op in ("Add", "Sub")},
    **{
        op: (lambda _, bounds: bounds[0] * LARGEST_SIZE, slice(1)) for op in ("CumSum", "ReduceSum")
    },
    "Range": (_of_range, slice(2)),
    "Clip": (lambda _, bounds: max(bounds), slice(None)),
    "Where": (lambda _, bounds: max(bounds), slice(1, 3)),
    "Mul": (lambda _, bounds: bounds[0] * bounds[1], slice(2)),
    "Mod": (lambda _, bounds: bounds[0], slice(1, 2)),
    "Div": (_quotient, slice(1)),
    # Of zero it is infinite, which becomes no integer at all: a model does not use that element.
    "Log": (lambda _, __: _LOGARITHM, slice(0)),
    "ConstantOfShape": (_filled, slice(0)),
}
"""The rule of each op, and the inputs whose bounds it takes."""


class Magnitudes(ForwardAnalysis[float]):
    """Finds an upper bound of the magnitude of the elements of tensors.

    Token ids, positions and masks are taken to be bounded: an input that indexes a table is not
    above `LARGEST_SIZE`, and one that is converted to booleans, and indexes none, is 0 or 1.

    Args:
        graph: The graph with the inputs.
    """

    def __init__(self, graph: gs.Graph) -> None:
        super().__init__()
        for tensor in graph.inputs:
            self._known[tensor] = _bound_of_input(tensor)

    def operands(self, node: gs.Node) -> Sequence[gs.Tensor] | None:
        """Return the inputs whose bounds the rule of the op takes."""
        if node.op not in RULES:
            return None
        return list(node.inputs)[RULES[node.op][1]]

    def transfer(self, node: gs.Node, facts: list[float | None]) -> float | None:
        """Apply the rule of the op."""
        if any(dtype_of(tensor) == np.dtype(bool) for tensor in node.outputs):
            return 1.0
        bounds = [fact for fact in facts if fact is not None]
        if len(bounds) < len(facts) and node.op != "Range":
            return None
        return RULES[node.op][0](node, bounds)

    def of_constant(self, constant: gs.Constant) -> float | None:
        """Return the largest magnitude of a constant of numbers."""
        values = constant_of(constant, at_most=1 << 20)
        if values is None or values.dtype.kind not in "bifu":
            return None
        largest = float(np.abs(values.astype(np.float64)).max(initial=0))
        return largest if np.isfinite(largest) else None


def _bound_of_input(tensor: gs.Tensor) -> float | None:
    dtype = dtype_of(tensor)
    if dtype == np.dtype(bool):
        return 1.0
    if dtype != np.dtype(np.int64):
        return None
    if _indexes(tensor, views=_VIEWS):
        return LARGEST_SIZE
    if _becomes_a_condition(tensor):
        return 1.0
    return LARGEST_SIZE if _indexes(tensor, views=(*_VIEWS, "Add", "Sub")) else None


def _indexes(tensor: gs.Tensor, views: Sequence[str]) -> bool:
    """Return whether a table is read at the elements of a tensor, itself or after some ops."""
    for reader, read in _readers(tensor, views):
        if is_standard(reader, "Gather") and reader.inputs[1] is read:
            return True
    return False


def _becomes_a_condition(tensor: gs.Tensor) -> bool:
    """Return whether a tensor is converted to booleans, itself or its products."""
    for reader, _ in _readers(tensor, (*_VIEWS, "Mul")):
        if is_standard(reader, "Cast") and dtype_of(reader.outputs[0]) == np.dtype(bool):
            return True
    return False


def _readers(tensor: gs.Tensor, views: Sequence[str]) -> Iterator[tuple[gs.Node, gs.Tensor]]:
    """Yield the readers of a tensor, and those of what some ops make of it."""
    waiting, seen = [tensor], {id(tensor)}
    while waiting:
        read = waiting.pop()
        for node in read.outputs:
            yield node, read
            if is_standard(node, *views):
                new = [out for out in node.outputs if id(out) not in seen]
                seen.update(map(id, new))
                waiting += new
