"""Static analysis of positions and of masks that are computed from positions.

The analysis follows differences, slices and concatenations of positions, so that a causal mask is
recognized however the model computes it.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.analysis.amounts import Amount
from coreai_onnx.passes.analysis.counting_rules import RULES
from coreai_onnx.passes.analysis.counts import Count, Known
from coreai_onnx.passes.engine.match import constant_of, is_standard
from coreai_onnx.passes.engine.tensor_table import TensorTable

_LONGEST = 4096
"""Constants with more elements are not read."""
_DEEPEST = 64
"""Longer chains are not followed."""
_DTYPES = ("bool", "int32", "int64")


class Counting:
    """Analyzes the tensors of one graph and caches the results."""

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._known: TensorTable[Known | None] = TensorTable()

    def of(self, tensor: gs.Tensor, depth: int = 0) -> Known | None:
        """Return the formula of a tensor of integers or booleans; None if it has none."""
        if tensor not in self._known:
            if depth > _DEEPEST:
                return None
            self._known[tensor] = self._evaluate(tensor, depth)
        return self._known[tensor]

    def _evaluate(self, tensor: gs.Tensor, depth: int) -> Known | None:
        if isinstance(tensor, gs.Constant):
            return _of_constant(tensor)
        node = tensor.inputs[0] if len(tensor.inputs) == 1 else None
        if node is None or node.op not in RULES or not is_standard(node, node.op):
            return None
        rule, read = RULES[node.op]
        known: list[Known] = []
        for one in list(node.inputs)[:read]:
            found = None if one.is_empty() else self.of(one, depth + 1)
            if found is None:
                return None
            known.append(found)
        return rule(node, known)


def _of_constant(constant: gs.Constant) -> Known | None:
    if np.dtype(constant.dtype).name not in _DTYPES:
        return None
    values = constant_of(constant, at_most=_LONGEST)
    if values is None or not values.size:
        return None
    values = values.astype(np.int64)
    start, steps, fitted = int(values.flat[0]), [], np.zeros(values.shape, np.int64)
    for axis, size in enumerate(values.shape):
        second = tuple(int(other == axis) for other in range(values.ndim))
        steps.append(int(values[second]) - start if size > 1 else 0)
        ramp = np.arange(size).reshape([-1 if other == axis else 1 for other in range(values.ndim)])
        fitted = fitted + steps[-1] * ramp
    if not np.array_equal(values, fitted + start):
        return None
    return Count(Amount(start), tuple(steps), tuple(Amount(size) for size in values.shape))
