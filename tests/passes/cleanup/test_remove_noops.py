from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.cleanup.remove_noops import (
    remove_identities,
    remove_neutral_operands,
    remove_noop_casts,
    remove_noop_expands,
    remove_noop_reshapes,
    remove_noop_slices,
    remove_noop_transposes,
)
from coreai_onnx.passes.cleanup.slices_of_concats import slices_of_concats
from tests.passes.rewriting import leaves, rewrite, same_numbers

TEXT = """main (float[n] x) => (float[n] y) <float[1] w = {1}, float[n] a, float[n] b>
{ a = Cast <to = 1> (x)  b = CastLike (a, w)  y = Neg (b) }"""


def test_casts_to_the_same_dtype_go() -> None:
    expected = "main (float[n] x) => (float[n] y) <float[1] w = {1}> { y = Neg (x) }"
    rewrite(TEXT, remove_noop_casts, 2, expected)
    same_numbers(TEXT, remove_noop_casts, {"x": np.array([-1, 2], np.float32)})


def test_casts_to_another_dtype_stay() -> None:
    leaves(
        "main (float[n] x) => (bfloat16[n] z) <float16[n] y> { y = Cast <to = 10> (x)  z = Cast <to = 16> (y) }",
        remove_noop_casts,
    )


def test_an_unknown_dtype_stays() -> None:
    leaves(
        "main (float[n] x) => (float[n] y) { a = Neg (x)  y = Cast <to = 1> (a) }",
        remove_noop_casts,
        "a dtype is not known",
    )


def test_in_a_function_the_dtype_is_not_known() -> None:
    leaves(
        """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
        main (float[n] x) => (float[n] y) { y = ai.coreai.f <to = 1> (x) }
        <domain: "ai.coreai", opset_import: ["": 23]>
        f <to> (x) => (y) { a = Cast <to: int = @to> (x)  y = Neg (a) }""",
        remove_noop_casts,
        "a dtype is not known",
    )


def test_the_identity_permutation_goes() -> None:
    text = (
        "main (float[n, 2] x) => (float[n, 2] z) { y = Transpose <perm = [0, 1]> (x)  z = Neg (y) }"
    )
    rewrite(
        text, remove_noop_transposes, 1, "main (float[n, 2] x) => (float[n, 2] z) { z = Neg (x) }"
    )
    same_numbers(text, remove_noop_transposes, {"x": np.ones((3, 2), np.float32)})


def test_without_perm_a_vector_stays_as_it_is() -> None:
    text = "main (float[n] x) => (float[n] z) { y = Transpose (x)  z = Neg (y) }"
    rewrite(text, remove_noop_transposes, 1, "main (float[n] x) => (float[n] z) { z = Neg (x) }")


def test_real_transposes_stay() -> None:
    leaves("main (float[n, 2] x) => (float[2, n] z) { z = Transpose (x) }", remove_noop_transposes)
    leaves(
        "main (float[n, 2] x) => (float[2, n] z) { z = Transpose <perm = [1, 0]> (x) }",
        remove_noop_transposes,
    )


def test_without_perm_the_rank_must_be_known() -> None:
    leaves(
        "main (float[n] x) => (float[n] z) { a = Neg (x)  z = Transpose (a) }",
        remove_noop_transposes,
        "without perm, the rank must be known",
    )


def test_a_perm_of_the_caller_stays() -> None:
    leaves(
        """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
        main (float[n] x) => (float[n] y) { y = ai.coreai.f <perm = [0]> (x) }
        <domain: "ai.coreai", opset_import: ["": 23]>
        f <perm> (x) => (y) { a = Transpose <perm: ints = @perm> (x)  y = Neg (a) }""",
        remove_noop_transposes,
        "perm refers to an attribute of the function",
    )


WITH = "main (float[n, 8] x) => (float[n, 8] z) <int64[{k}] s = {{{target}}}> {{ y = {op} (x, s)  z = Neg (y) }}"


WITHOUT = "main (float[n, 8] x) => (float[n, 8] z) <int64[{k}] s = {{{target}}}> {{ z = Neg (x) }}"


@pytest.mark.parametrize(
    ("op", "target"), [("Expand", "1, 1"), ("Expand", "1, 8"), ("Expand", "8"), ("Tile", "1, 1")]
)
def test_what_repeats_nothing_goes(op, target) -> None:
    k = target.count(",") + 1
    text = WITH.format(op=op, target=target, k=k)
    rewrite(text, remove_noop_expands, 1, WITHOUT.format(target=target, k=k))
    same_numbers(text, remove_noop_expands, {"x": np.ones((3, 8), np.float32)})


def test_the_shape_of_the_tensor_itself() -> None:
    text = (
        "main (float[n, m] x) => (float[n, m] z) { s = Shape (x)  y = Expand (x, s)  z = Neg (y) }"
    )
    rewrite(
        text,
        remove_noop_expands,
        1,
        "main (float[n, m] x) => (float[n, m] z) { s = Shape (x)  z = Neg (x) }",
    )


@pytest.mark.parametrize(
    ("op", "target"), [("Expand", "3, 8"), ("Expand", "1, 1, 1"), ("Tile", "1, 2")]
)
def test_what_repeats_stays(op, target) -> None:
    k = target.count(",") + 1
    text = WITH.format(op=op, target=target, k=k).replace("float[n, 8] z", "float z")
    leaves(
        text.replace("(float z)", "(float[p, q] z)" if k == 2 else "(float[p, q, r] z)"),
        remove_noop_expands,
    )


def test_an_unknown_target_stays() -> None:
    leaves(
        "main (float[n, 8] x, int64[2] s) => (float[p, 8] z) { z = Expand (x, s) }",
        remove_noop_expands,
        "the target shape is not known",
    )


RESHAPES_WITH = "main (float[n, 8] x) => (float[n, 8] z) <{inner}int64[2] s = {{{target}}}> {{ y = Reshape (x, s)  z = Neg (y) }}"


RESHAPES_WITHOUT = (
    "main (float[n, 8] x) => (float[n, 8] z) <int64[2] s = {{{target}}}> {{ z = Neg (x) }}"
)


@pytest.mark.parametrize("target", ["0, 8", "-1, 8", "0, -1"])
def test_targets_that_name_the_same_shape(target) -> None:
    text = RESHAPES_WITH.format(inner="", target=target)
    rewrite(text, remove_noop_reshapes, 1, RESHAPES_WITHOUT.format(target=target))
    same_numbers(text, remove_noop_reshapes, {"x": np.ones((3, 8), np.float32)})


def test_declared_shapes_that_are_equal() -> None:
    text = RESHAPES_WITH.format(inner="float[n, 8] y, ", target="-1, 8")
    rewrite(text, remove_noop_reshapes, 1, RESHAPES_WITHOUT.format(target="-1, 8"))


def test_a_target_computed_from_the_input() -> None:
    text = """main (float[n, m] x) => (float[n, m] z) { s = Shape (x)  y = Reshape (x, s)  z = Neg (y) }"""
    expected = "main (float[n, m] x) => (float[n, m] z) { s = Shape (x)  z = Neg (x) }"
    rewrite(text, remove_noop_reshapes, 1, expected)


@pytest.mark.parametrize("target", ["8, -1", "4, -1", "-1, 16"])
def test_other_targets_stay(target) -> None:
    leaves(
        RESHAPES_WITH.format(inner="", target=target).replace("float[n, 8] z", "float[p, q] z"),
        remove_noop_reshapes,
    )


def test_zero_with_allowzero_is_a_dim_of_zero() -> None:
    text = "main (float[n, 8] x) => (float[p, 8] z) <int64[2] s = {0, 8}> { z = Reshape <allowzero = 1> (x, s) }"
    leaves(text, remove_noop_reshapes)


def test_two_unknown_dims_are_not_equal() -> None:
    text = "main (float[?, 8] x) => (float[?, 8] z) <int64[2] s = {4, 8}, float[?, 8] y> { y = Reshape (x, s)  z = Neg (y) }"
    leaves(text, remove_noop_reshapes)


def test_an_unknown_shape_stays() -> None:
    leaves(
        "main (float x) => (float[p] z) <int64[1] s = {0}> { a = Neg (x)  z = Reshape (a, s) }",
        remove_noop_reshapes,
        "the shape of the input is not known",
    )


SLICES_WITH = """main (float[n, 8] x) => (float[p, q] z)
<int64[1] starts = {{{start}}}, int64[1] ends = {{{end}}}, int64[1] axes = {{{axis}}}, int64[1] steps = {{{step}}}>
{{ y = Slice (x, starts, ends, axes, steps)  z = Neg (y) }}"""


MAX = str(2**63 - 1)


def case(start="0", end=MAX, axis="0", step="1") -> str:
    return SLICES_WITH.format(start=start, end=end, axis=axis, step=step)


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


CHAIN = "main (float[n] x) => (float[n] y) { a = Identity (x)  b = Relu (a)  y = Identity (b) }"


def test_a_graph_output_keeps_its_name() -> None:
    rewrite(CHAIN, remove_identities, 2, "main (float[n] x) => (float[n] y) { y = Relu (x) }")
    same_numbers(CHAIN, remove_identities, {"x": np.array([-1, 2], np.float32)})


def test_readers_of_what_becomes_the_output_follow() -> None:
    rewrite(
        "main (float[n] x) => (float[n] y, float[n] z) { b = Relu (x)  y = Identity (b)  z = Neg (b) }",
        remove_identities,
        1,
        "main (float[n] x) => (float[n] y, float[n] z) { y = Relu (x)  z = Neg (y) }",
    )


def test_dropout_outside_training_goes() -> None:
    text = """main (float[n] x) => (float[n] y) <float r = {0.5}, bool t = {0}>
    { a = Dropout (x, r)  b = Dropout (a, r, t)  y = Neg (b) }"""
    expected = (
        """main (float[n] x) => (float[n] y) <float r = {0.5}, bool t = {0}> { y = Neg (x) }"""
    )
    rewrite(text, remove_identities, 2, expected)


def test_an_input_or_initializer_that_is_an_output_stays() -> None:
    leaves(
        "main (float[n] x) => (float[n] y) { y = Identity (x) }",
        remove_identities,
        "it names a graph output",
    )
    leaves(
        "main () => (float[1] y) <float[1] w = {1}> { y = Identity (w) }",
        remove_identities,
        "it names a graph output",
    )


def test_one_value_under_two_output_names_stays() -> None:
    leaves(
        "main (float[n] x) => (float[n] y, float[n] z) { y = Neg (x)  z = Identity (y) }",
        remove_identities,
        "it names a graph output",
    )


def test_training_stays() -> None:
    reason = "Dropout may be in training mode, or its mask is used"
    leaves(
        "main (float[n] x, bool t) => (float[n] y) <float r = {0.5}> { y = Dropout (x, r, t) }",
        remove_identities,
        reason,
    )
    leaves(
        "main (float[n] x) => (float[n] y, bool[n] m) { y, m = Dropout (x) }",
        remove_identities,
        reason,
    )


def test_a_subgraph_output_taken_from_outside_stays() -> None:
    leaves(
        """main (bool c, float[n] x) => (float[n] y) {
          h = Neg (x)
          y = If (c) <then_branch = a () => (float[n] t) { t = Identity (h) },
                      else_branch = b () => (float[n] e) { e = Abs (h) }>
        }""",
        remove_identities,
        "it names a graph output",
    )


OPERANDS_TEXT = "main ({dtype}[n, 2] x) => ({dtype}[n, 2] z) <{dtype} c = {{{value}}}> {{ y = {op} ({inputs})  z = {end} (y) }}"


OPERANDS_WITHOUT = (
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
    rewrite(
        OPERANDS_TEXT.format(**names), remove_neutral_operands, 1, OPERANDS_WITHOUT.format(**names)
    )
    kinds = {"float": np.float32, "int64": np.int64, "bool": np.bool_}
    feeds = {"x": np.array([[0, 1], [3, -0.0]]).astype(kinds[dtype])}
    same_numbers(OPERANDS_TEXT.format(**names), remove_neutral_operands, feeds)


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
    leaves(OPERANDS_TEXT.format(**names), remove_neutral_operands)


def test_an_operand_that_adds_an_axis_stays() -> None:
    leaves(
        "main (float[n] x) => (float[1, n] z) <float[1, 1] c = {1}> { y = Mul (x, c)  z = Neg (y) }",
        remove_neutral_operands,
    )
