"""Operators that WebGPU, or another processor, computes otherwise, by operators that are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.match import (
    attribute_of,
    dtype_of,
    ints_of,
    made_by,
    scalar_of,
    shape_of,
)
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
    total = f("Mul", square, f.polynomial(square, _POLYNOMIALS[node.op]))
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
        inputs = [self.number(one) if isinstance(one, float) else one for one in operands]
        return self._edit.add(op, self._node, inputs, _FLOAT32, self._shape, **attrs)

    def number(self, value: float | np.ndarray) -> gs.Tensor:
        """Return a constant in float32."""
        return self._edit.constant(f"{self._node.name}_number", np.array(value, np.float32))

    def polynomial(self, x: gs.Tensor, coefficients: tuple[float, ...]) -> gs.Tensor:
        """Return c[0] + c[1] x + c[2] x² + …, of two coefficients at least."""
        *lower, value = coefficients
        total: gs.Tensor | float = value
        for coefficient in reversed(lower):
            total = self("Add", self("Mul", x, total), coefficient)
        assert not isinstance(total, float)
        return total

    def power_index(self, x: gs.Tensor, size: int, offset: int) -> gs.Tensor:
        """Return x + offset as an index into a table; any for NaN, whose product is NaN."""
        integers = np.dtype(np.int64)

        def add(op: str, *inputs: gs.Tensor, **attrs: Any) -> gs.Tensor:
            return self._edit.add(op, self._node, inputs, integers, self._shape, **attrs)

        bounds = [
            self._edit.constant(f"{self._node.name}_bound", np.array(bound, integers))
            for bound in (offset, 0, size - 1)
        ]
        index = add("Add", add("Cast", x, to=int(ir.DataType.INT64)), bounds[0])
        return add("Min", add("Max", index, bounds[1]), bounds[2])


# Cephes, expf.c and tanhf.c (Moshier 1992): e^r = 1 + r + r²·p(r) for |r| ≤ ln(2) / 2, and
# tanh(x) = x + x·x²·p(x²) for |x| < 0.625.
_EXP = (0.5, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4)
_TANH = (
    -3.33332819422e-1,
    1.33314422036e-1,
    -5.37397155531e-2,
    2.06390887954e-2,
    -5.70498872745e-3,
)
_SMALL = 0.625
# ln(2) in two parts, of which the first has 9 bits: products with exponents are exact.
_LN2 = (0.693359375, -2.12194440e-4)
# ln(1 + e) = 2 (s + s³ / 3 + s⁵ / 5 + …) with s = e / (2 + e) ≤ 1/3: the rest is 2e-9 of the sum.
_LOG = tuple(1 / n for n in range(3, 17, 2))
# ln(m) likewise, with s = (m - 1) / (m + 1), |s| ≤ 0.172 for m within sqrt(2) of 1.
_LOG_NEAR_ONE = tuple(1 / n for n in range(3, 11, 2))
# 2^-149 is the least number of float32 above 0, and 2^128 is above the largest.
_LEAST_EXPONENT, _MOST_EXPONENT = -150, 128


@rewrites("Pow")
def powers_by_products(edit: Edit, node: gs.Node, why: Why) -> bool:
    """A square or cube, for which processors have several formulas → products.

    Pow(x, 3)     becomes     Mul(Mul(x, x), x)
    """
    x, exponent = node.inputs[0], scalar_of(node.inputs[1])
    if dtype_of(x) != _FLOAT32 or exponent not in (2, 3):
        return why("it is not a square or cube of float32", node)
    if exponent == 3:
        x = edit.add("Mul", node, [x, x], _FLOAT32, shape_of(x))
    edit.become(node, "Mul", [x, node.inputs[0]])
    return True


@rewrites("Exp", "Sigmoid", "Tanh", "Softplus")
def exponentials_by_polynomials(edit: Edit, node: gs.Node, why: Why) -> bool:
    """Exponentials, for which each processor has another formula → exact arithmetic.

    Exp(x)     becomes     p(x - k * ln(2)) * 2^k, where k = Floor(x / ln(2) + 1 / 2)

    The others follow from e^-|x|, that of Softplus as a node for the next round. The powers of two
    are a table. Errors are below 2 units in the last place for Exp, and below 4 for the others.
    """
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    if dtype_of(x) != _FLOAT32:
        return why("the dtype is not float32", node)
    f = _Formula(edit, node)
    if node.op == "Exp":
        edit.become(node, "Identity", [_exp(f, x)])
        return True
    size_of = f("Abs", x)
    e = f("Mul", size_of, -2.0 if node.op == "Tanh" else -1.0)
    e = f("Exp", e) if node.op == "Softplus" else _exp(f, e)
    below = edit.add("Less", node, [x, f.number(0.0)], np.dtype(np.bool_), shape)
    if node.op == "Sigmoid":
        edit.become(node, "Div", [f("Where", below, e, 1.0), f("Add", e, 1.0)])
    elif node.op == "Softplus":
        s = f("Div", e, f("Add", e, 2.0))
        square = f("Mul", s, s)
        series = f("Add", f("Mul", square, f.polynomial(square, _LOG)), 1.0)
        edit.become(node, "Add", [f("Max", x, 0.0), f("Mul", f("Mul", s, 2.0), series)])
    else:
        large = f("Div", f("Sub", 1.0, e), f("Add", e, 1.0))
        square = f("Mul", x, x)
        small = f("Add", f("Mul", f("Mul", square, f.polynomial(square, _TANH)), x), x)
        signed = f("Where", below, f("Neg", large), large)
        is_small = edit.add("Less", node, [size_of, f.number(_SMALL)], np.dtype(np.bool_), shape)
        edit.become(node, "Where", [is_small, small, signed])
    return True


def _exp(f: _Formula, x: gs.Tensor) -> gs.Tensor:
    """Return e^x."""
    bounded = f("Clip", x, (_LEAST_EXPONENT - 2) * np.log(2), (_MOST_EXPONENT + 2) * np.log(2))
    k = f("Floor", f("Add", f("Mul", bounded, 1 / np.log(2)), 0.5))
    r = bounded
    for part in _LN2:
        r = f("Sub", r, f("Mul", k, part))
    p = f("Add", f("Add", f("Mul", f("Mul", r, r), f.polynomial(r, _EXP)), r), 1.0)
    # Half the power, so that the largest results are finite; 0 below the least number.
    exponents = np.arange(_LEAST_EXPONENT, _MOST_EXPONENT + 1)
    table = np.concatenate([[0], np.ldexp(0.5, exponents), [np.inf]])
    index = f.power_index(k, len(table), 1 - _LEAST_EXPONENT)
    return f("Mul", f("Mul", p, 2.0), f("Gather", f.number(table), index))


@rewrites("Log")
def logarithms_by_polynomials(edit: Edit, node: gs.Node, why: Why) -> bool:
    """A logarithm, for which onnxruntime has two formulas → exact arithmetic.

    Log(x)     becomes     k * ln(2) + p(x / 2^k), where x / 2^k is within sqrt(2) of 1

    onnxruntime computes vectors by one formula and what is left of a row by another. The power of
    two is found by halving an interval of exponents. Errors are below 2 units in the
    last place.
    """
    x, shape = node.inputs[0], shape_of(node.inputs[0])
    if dtype_of(x) != _FLOAT32:
        return why("the dtype is not float32", node)
    f = _Formula(edit, node)

    def test(op: str, tensor: gs.Tensor, bound: float) -> gs.Tensor:
        return edit.add(op, node, [tensor, f.number(bound)], np.dtype(np.bool_), shape)

    m, k = x, f.number(0.0)
    # Factors that are powers of two round nothing.
    scales = [("Less", 2.0**-64, 96), ("Less", 1.0, 64)]
    scales += [("GreaterOrEqual", 2.0**power, -power) for power in (64, 32, 16, 8, 4, 2, 1)]
    for op, bound, power in (*scales, ("GreaterOrEqual", np.sqrt(2), -1)):
        outside = test(op, m, bound)
        m = f("Mul", m, f("Where", outside, 2.0**power, 1.0))
        k = f("Add", k, f("Where", outside, float(-power), 0.0))
    s = f("Div", f("Sub", m, 1.0), f("Add", m, 1.0))
    square = f("Mul", s, s)
    tail = f("Mul", square, f.polynomial(square, _LOG_NEAR_ONE))
    near = f("Add", f("Mul", f("Mul", s, 2.0), tail), f("Mul", k, _LN2[1]))
    result = f("Add", f("Mul", k, _LN2[0]), f("Add", f("Mul", s, 2.0), near))
    result = f("Where", test("Equal", x, 0.0), -np.inf, result)
    result = f("Where", test("Less", x, 0.0), np.nan, result)
    edit.become(node, "Where", [test("Equal", x, np.inf), x, result])
    return True


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
