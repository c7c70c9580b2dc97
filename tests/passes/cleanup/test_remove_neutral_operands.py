from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.remove_noops import remove_neutral_operands
from tests.passes.rewriting import leaves, rewrite, same_numbers

TEXT = "main ({dtype}[n, 2] x) => ({dtype}[n, 2] z) <{dtype} c = {{{value}}}> {{ y = {op} ({inputs})  z = {end} (y) }}"
WITHOUT = (
    "main ({dtype}[n, 2] x) => ({dtype}[n, 2] z) <{dtype} c = {{{value}}}> {{ z = {end} (x) }}"
)
CASES = [
    ("Mul", "float", 1.0, "x, c", "Neg"),
    ("Mul", "float", 1.0, "c, x", "Neg"),
    ("Div", "float", 1.0, "x, c", "Neg"),
    ("Add", "int64", 0, "c, x", "Neg"),
    ("Sub", "int64", 0, "x, c", "Neg"),
    ("And", "bool", 1, "c, x", "Not"),
    ("Or", "bool", 0, "x, c", "Not"),
]


@pytest.mark.parametrize(("op", "dtype", "value", "inputs", "end"), CASES)
def test_the_other_operand_is_the_result(op, dtype, value, inputs, end) -> None:
    names = {"op": op, "dtype": dtype, "value": value, "inputs": inputs, "end": end}
    rewrite(TEXT.format(**names), remove_neutral_operands, 1, WITHOUT.format(**names))
    kinds = {"float": np.float32, "int64": np.int64, "bool": np.bool_}
    feeds = {"x": np.array([[0, 1], [3, -0.0]]).astype(kinds[dtype])}
    same_numbers(TEXT.format(**names), remove_neutral_operands, feeds)


@pytest.mark.parametrize(
    ("op", "dtype", "value", "inputs", "end"),
    [
        ("Add", "float", 0.0, "x, c", "Neg"),  # -0 + 0 is 0
        ("Sub", "int64", 0, "c, x", "Neg"),
        ("Div", "float", 1.0, "c, x", "Neg"),
        ("Mul", "float", 2.0, "x, c", "Neg"),
        ("And", "bool", 0, "x, c", "Not"),
    ],
)
def test_other_operands_count(op, dtype, value, inputs, end) -> None:
    names = {"op": op, "dtype": dtype, "value": value, "inputs": inputs, "end": end}
    leaves(TEXT.format(**names), remove_neutral_operands)


def test_an_operand_that_adds_an_axis_stays() -> None:
    leaves(
        "main (float[n] x) => (float[1, n] z) <float[1, 1] c = {1}> { y = Mul (x, c)  z = Neg (y) }",
        remove_neutral_operands,
    )
