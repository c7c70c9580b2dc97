from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.passes import open_model
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.narrow import computation, computed_by, in_dtype
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import parse, run_passes

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TEXT = (
    "main (bfloat16[n] x, bfloat16[n] y, float[n] f, float16[n] h) => ({dtype}[n] z) "
    "<float two = {{2}}> {{ {body} }}"
)
WIDE = "float[n] a = Cast <to = 1> (x) float[n] b = Cast <to = 1> (y)"


def seen(body: str, dtype: str = "bfloat16") -> tuple[str, list[str], str]:
    """Return op, operands and last op of what the last node of a graph computes."""
    found: list[tuple[str, list[str], str]] = []

    def look(graph: gs.Graph, why: Why) -> int:
        last = computation(graph.nodes[-1])
        found.append((last.op, [tensor.name for tensor in last.inputs], last.last.op))
        return 0

    run_passes(parse(TEXT.format(body=body, dtype=dtype)), [look])
    return found[0]


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        (f"{WIDE} float[n] s = Add (a, b) z = Cast <to = 16> (s)", ["x", "y"]),
        (f"{WIDE} float[n] s = Add (a, a) z = Cast <to = 16> (s)", ["x", "x"]),
        (f"{WIDE} float[n] s = Add (two, a) z = Cast <to = 16> (s)", ["two", "x"]),
    ],
)
def test_an_op_between_casts_is_one_in_bfloat16(body: str, inputs: list[str]) -> None:
    assert seen(body) == ("Add", inputs, "Cast")


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        (f"{WIDE} float[n] s = Add (a, f) z = Cast <to = 16> (s)", "bfloat16"),  # a float32 term
        (f"{WIDE} float[n] s = Add (a, b) z = Cast <to = 10> (s)", "float16"),  # another dtype
        (f"{WIDE} float[n] s = Add (f, two) z = Cast <to = 16> (s)", "bfloat16"),
        ("float[n] a = Cast <to = 1> (h) float[n] s = Neg (a) z = Cast <to = 16> (s)", "bfloat16"),
        ("z = Cast <to = 16> (f)", "bfloat16"),
    ],
)
def test_an_op_on_wider_numbers_is_none(body: str, dtype: str) -> None:
    assert seen(body, dtype)[0] == "Cast"


def test_an_op_without_casts_is_itself() -> None:
    assert seen("z = Add (f, f)", "float") == ("Add", ["f", "f"], "Add")


def test_only_the_first_output_of_an_op_is_what_it_computes() -> None:
    results: list[object] = []

    def look(graph: gs.Graph, why: Why) -> int:
        first, second = graph.nodes[0].outputs
        results.extend([computed_by(first, "Split"), computed_by(second, "Split")])
        results.append(computed_by(first, "Add"))
        return 0

    run_passes(parse("main (float[4] x) => (float[2] y, float[2] z) { y, z = Split <num_outputs = 2> (x) }"), [look])  # fmt: skip
    assert [one is None for one in results] == [False, True, True]


def test_a_constant_is_narrow_if_its_values_are() -> None:
    edit = Edit(open_model(parse("main (float[n] x) => (float[n] y) { y = Neg (x) }")))
    exact = gs.Constant("w", np.array([1, -2.5, np.nan], np.float32))
    narrow = in_dtype(edit, exact, BFLOAT16)
    assert narrow is not None
    assert narrow.values.dtype == BFLOAT16
    np.testing.assert_array_equal(narrow.values.astype(np.float32), exact.values)
    inexact = gs.Constant("v", np.array([1, 1 + 2**-9], np.float32))
    assert in_dtype(edit, inexact, BFLOAT16) is None
    assert in_dtype(edit, inexact, np.dtype(np.float32)) is inexact
    assert in_dtype(edit, gs.Variable("x", np.float32, [2]), BFLOAT16) is None
