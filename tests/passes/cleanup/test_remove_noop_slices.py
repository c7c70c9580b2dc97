from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.remove_noops import remove_noop_slices
from coreai_onnx.passes.cleanup.slices_of_concats import slices_of_concats
from tests.passes.rewriting import leaves, rewrite, same_numbers

WITH = """main (float[n, 8] x) => (float[p, q] z)
<int64[1] starts = {{{start}}}, int64[1] ends = {{{end}}}, int64[1] axes = {{{axis}}}, int64[1] steps = {{{step}}}>
{{ y = Slice (x, starts, ends, axes, steps)  z = Neg (y) }}"""
MAX = str(2**63 - 1)


def case(start="0", end=MAX, axis="0", step="1") -> str:
    return WITH.format(start=start, end=end, axis=axis, step=step)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"end": str(2**31 - 1)},
        {"axis": "1", "end": "8"},
        {"axis": "-1", "start": "-8", "end": "9"},
    ],
)
def test_slices_of_everything_go(values) -> None:
    text = case(**values)
    head = text[: text.index("{ y")]
    rewrite(text, remove_noop_slices, 1, head + "{ z = Neg (x) }")
    same_numbers(text, remove_noop_slices, {"x": np.ones((3, 8), np.float32)})


@pytest.mark.parametrize(
    "values",
    [
        {"start": "1"}, {"end": "5"}, {"end": "-1"}, {"axis": "1", "end": "7"},
        {"axis": "1", "start": "-7", "end": "8"}, {"step": "-1", "start": MAX, "end": "-9223372036854775807"},
        {"step": "2"},
    ],
)  # fmt: skip
def test_real_slices_stay(values) -> None:
    leaves(case(**values), remove_noop_slices)


def test_axes_may_be_left_out() -> None:
    text = """main (float[n] x) => (float[n] z) <int64[1] a = {0}, int64[1] b = {9223372036854775807}>
    { y = Slice (x, a, b)  z = Neg (y) }"""
    rewrite(text, remove_noop_slices, 1, text[: text.index("{ y")] + "{ z = Neg (x) }")


def test_computed_bounds_stay() -> None:
    leaves(
        "main (float[n] x, int64[1] a, int64[1] b) => (float[m] z) { z = Slice (x, a, b) }",
        remove_noop_slices,
        "starts or ends are computed",
    )
    leaves(
        """main (float[n] x, int64[1] c) => (float[m] z) <int64[1] a = {0}, int64[1] b = {99}>
        { z = Slice (x, a, b, c) }""",
        remove_noop_slices,
        "axes or steps are computed",
    )


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (remove_noop_slices, "starts and ends are attributes, as before opset 10"),
        (slices_of_concats, None),
    ],
)
def test_slices_of_old_opsets_say_their_bounds_as_attributes(one, reason) -> None:
    text = """<ir_version: 8, opset_import: ["": 9]>
    main (float[4, 8] x) => (float[4, 8] z) <float[4, 16] w>
    { w = Concat <axis = 1> (x, x)  y = Slice <starts = [0], ends = [8], axes = [1]> (w)  z = Neg (y) }"""
    leaves(text, one, reason)


def test_bounds_of_different_lengths_stay() -> None:
    text = case().replace("int64[1] ends = {9223372036854775807}", "int64[2] ends = {9, 9}")
    leaves(text, remove_noop_slices, "starts, ends, axes and steps must have the same length")
