"""Operators that WebGPU computes with large errors, in a form without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import attribute_of, dtype_of, ints_of, made_by, shape_of
from coreai_onnx.passes.engine.why import Why

_FLOAT32, _FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
# π in three parts (Cody and Waite, Software Manual for the Elementary Functions, 1980). The first
# two have 8 bits, so that their products with integers below 2^16 are exact in float32.
_PI = (201 / 64, 253 / 2**18, 2.5351817e-06)
# Remez polynomials in r² with |r| ≤ π/2: sin(r) = r + r·r²·p(r²), within 5e-9, and
# cos(r) = 1 + r²·p(r²), within 3e-10.
_POLYNOMIALS = {
    "Sin": (-1.66666569e-01, 8.33301250e-03, -1.98062673e-04, 2.59928233e-06),
    "Cos": (-4.99999995e-01, 4.16666402e-02, -1.38883961e-03, 2.47614873e-05, -2.60697495e-07),
}
_LARGEST = 1.6
"""Bounds the remainder of numbers above 2e5, which is not exact, so that results are in [-1, 1]."""


@rewrites("Sin", "Cos")
def sines_by_polynomials(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Sine and cosine, in which the standard of WebGPU allows errors of 2^-11 → exact arithmetic.

    Sin(x)     becomes     (-1)^k * p(x - k * π), where k = Floor(x / π + 1 / 2)

    The remainder and the sign are the same for sine and cosine, so that one computation serves
    both. Up to 2e5 the absolute error is below 2e-7.
    """
    source = node.inputs[0]
    dtype = dtype_of(source)
    if dtype not in (_FLOAT32, _FLOAT16):
        return why("the dtype is not float32 or float16", node)
    f = _Formula(edit, node)
    x = source if dtype == _FLOAT32 else f("Cast", source, to=int(ir.DataType.FLOAT))
    turns = f("Floor", f("Add", f("Mul", x, 1 / np.pi), 0.5))
    rest = x
    for part in _PI:
        rest = f("Sub", rest, f("Mul", turns, part))
    rest = f("Clip", rest, -_LARGEST, _LARGEST)
    square = f("Mul", rest, rest)
    *lower, value = _POLYNOMIALS[node.op]
    total: gs.Tensor | float = value
    for coefficient in reversed(lower):
        total = f("Add", f("Mul", square, total), coefficient)
    total = f("Mul", square, total)
    result = f("Add", total, 1.0) if node.op == "Cos" else f("Add", f("Mul", rest, total), rest)
    # The fraction of k / 2 is 0 for even k and 1/2 for odd ones, and NaN for infinities.
    half = f("Mul", turns, 0.5)
    sign = f("Sub", 1.0, f("Mul", f("Sub", half, f("Floor", half)), 4.0))
    if dtype == _FLOAT32:
        edit.become(node, "Mul", [result, sign])
    else:
        narrow = f("Mul", result, sign)
        edit.become(node, "Cast", [narrow], to=int(ir.DataType.FLOAT16))
    return True


class _Formula:
    """Adds nodes in float32 before a node, of the shape of its input."""

    def __init__(self, edit: Edit, node: gs.Node) -> None:
        self._edit, self._node = edit, node
        self._shape = shape_of(node.inputs[0])

    def __call__(self, op: str, *operands: gs.Tensor | float, **attrs: Any) -> gs.Tensor:
        """Add a node and return its output; numbers become constants."""
        inputs = [
            self._edit.constant(f"{self._node.name}_{op.lower()}", np.array(one, np.float32))
            if isinstance(one, float)
            else one
            for one in operands
        ]
        return self._edit.add(op, self._node, inputs, _FLOAT32, self._shape, **attrs)


@rewrites("LayerNormalization", "InstanceNormalization")
def centered_norms(edit: Edit, node: gs.Node, why: Why) -> bool:
    """A norm of x → of x - mean(x): WebGPU computes the variance as mean(x²) - mean(x)².

    LayerNormalization(x)     becomes     LayerNormalization(Sub(x, ReduceMean(x)))

    The difference cancels where the mean is large beside the standard deviation.
    """
    source, shape = node.inputs[0], shape_of(node.inputs[0])
    if dtype_of(source) not in (_FLOAT32, _FLOAT16):
        return why("the dtype is not float32 or float16", node)
    if any(not tensor.is_empty() for tensor in node.outputs[1:]):
        return why("its statistics are results", node)
    first = 2 if node.op == "InstanceNormalization" else attribute_of(node, "axis", -1)
    if not isinstance(first, int) or (shape is None and first >= 0):
        return why("the normalized axes are not known", node)
    axes = list(range(first, 0 if first < 0 else len(shape or ())))
    if _is_centered(source, axes):
        return False
    rows = (
        None
        if shape is None
        else [1 if i in axes or i - len(shape) in axes else dim for i, dim in enumerate(shape)]
    )
    places = edit.constant(f"{node.name}_axes", np.array(axes, np.int64))
    dtype = dtype_of(source)
    mean = edit.add("ReduceMean", node, [source, places], dtype, rows, keepdims=1)
    set_input(node, 0, edit.add("Sub", node, [source, mean], dtype, shape))
    return True


def _is_centered(tensor: gs.Tensor, axes: list[int]) -> bool:
    """Return whether a tensor is x - mean(x) over these axes."""
    difference = made_by(tensor, "Sub")
    mean = None if difference is None else made_by(difference.inputs[1], "ReduceMean")
    if difference is None or mean is None or len(mean.inputs) < 2:
        return False
    return mean.inputs[0] is difference.inputs[0] and ints_of(mean.inputs[1]) == axes
