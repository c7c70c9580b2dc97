"""Static analysis of positions and of masks that are computed from positions.

The analysis follows differences, slices and concatenations of positions, so that a causal mask is
recognized however the model computes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coreai_onnx.passes.analysis.affine import AffineExpr, AffineTensor, AffineValue
from coreai_onnx.passes.analysis.affine_rules import PARTIAL, RULES
from coreai_onnx.passes.analysis.dataflow import ForwardAnalysis
from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.match import constant_of

_LONGEST = 4096
"""Constants with more elements are not read."""
_DTYPES = ("bool", "int32", "int64")


class AffineAnalysis(ForwardAnalysis[AffineValue]):
    """Finds the tensors of integers and booleans that are affine in their indices.

    Args:
        open_ranges: Whether a ``Range`` of unknown limit is followed, with its declared length.
    """

    def __init__(self, *, open_ranges: bool = False) -> None:
        """Start with an empty cache."""
        super().__init__()
        self._partial = PARTIAL if open_ranges else ()

    def operands(self, node: gs.Node) -> Sequence[gs.Tensor] | None:
        """Return the inputs that the rule of the op reads."""
        if node.op not in RULES:
            return None
        return list(node.inputs)[: RULES[node.op][1]]

    def transfer(self, node: gs.Node, known: list[AffineValue | None]) -> AffineValue | None:
        """Apply the rule of the op, which for most ops needs all operands."""
        # An unknown limit leaves the length of a Range unknown, but not its start and step.
        if None in known and node.op not in self._partial:
            return None
        return RULES[node.op][0](node, known)

    def of_constant(self, constant: gs.Constant) -> AffineTensor | None:
        """Fit start and steps to the elements of a constant."""
        if np.dtype(constant.dtype).name not in _DTYPES:
            return None
        values = constant_of(constant, at_most=_LONGEST)
        if values is None or not values.size:
            return None
        # Booleans become 0 and 1, and differences of int32 do not wrap around.
        values = values.astype(np.int64)
        start, steps, fitted = int(values.flat[0]), [], np.zeros(values.shape, np.int64)
        for axis, size in enumerate(values.shape):
            second = tuple(int(other == axis) for other in range(values.ndim))
            steps.append(int(values[second]) - start if size > 1 else 0)
            fitted += steps[-1] * np.indices(values.shape)[axis]
        if not np.array_equal(values, fitted + start):
            return None
        dims = tuple(AffineExpr(size) for size in values.shape)
        return AffineTensor(AffineExpr(start), tuple(steps), dims)
