"""Tests of replaces what is known before the model runs by constants: nodes and shapes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.passes.cleanup.fold_constants import (
    LIMIT,
    fold_constants,
    fold_shapes,
    inline_calls_without_kernels,
    inline_constant_calls,
)
from tests.passes.rewriting import leaves, parse, rewrite, run_passes, same_numbers

TEXT = """main (float[n] x) => (float[n] y) <float a = {2}, float b = {3}>
{ c = Mul (a, b)  d = Add (c, a)  y = Add (x, d) }"""


def test_a_chain_of_constants() -> None:
    expected = """main (float[n] x) => (float[n] y) <float a = {2}, float b = {3}, float d = {8}>
    { y = Add (x, d) }"""
    rewrite(TEXT, fold_constants, 2, expected)
    same_numbers(TEXT, fold_constants, {"x": np.ones(3, np.float32)})


def test_in_a_function_the_result_is_a_constant_node() -> None:
    head = '<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]> main (float[n] x) => (float[n] y) { y = ai.coreai.f (x) }'
    before = """<domain: "ai.coreai", opset_import: ["": 23]> f (x) => (y) {
      a = Constant <value = float {2}> ()  b = Constant <value_float = 3.0> ()
      c = Mul (a, b)  y = Add (x, c)
    }"""
    after = """<domain: "ai.coreai", opset_import: ["": 23]> f (x) => (y) {
      c = Constant <value = float {6}> ()
      a = Constant <value = float {2}> ()  b = Constant <value_float = 3.0> ()  y = Add (x, c)
    }"""
    model = parse(head + before)
    model.functions["ai.coreai", "f", ""][2].metadata_props["coreai.scope"] = "encoder"
    run_passes(model, [fold_constants])
    (function,) = model.functions.values()
    assert function[0].metadata_props["coreai.scope"] == "encoder"
    rewrite(head + before, fold_constants, 1, head + after)
    same_numbers(head + before, fold_constants, {"x": np.ones(3, np.float32)})


def test_a_graph_output_is_produced_by_an_identity() -> None:
    text = "main () => (float z) <float a = {2}> { z = Mul (a, a) }"
    expected = (
        "main () => (float z) <float a = {2}, float z_value = {4}> { z = Identity (z_value) }"
    )
    rewrite(text, fold_constants, 1, expected)
    same_numbers(text, fold_constants, {})


def test_an_output_of_a_branch() -> None:
    text = """main (bool c) => (float y) <float a = {2}> {
      y = If (c) <then_branch = a () => (float t) { t = Mul (a, a) },
                  else_branch = b () => (float e) { k = Neg (a)  e = Neg (k) }>
    }""".replace("a () =>", "p () =>").replace("b () =>", "q () =>")
    same_numbers(text, fold_constants, {"c": np.array(True)})
    same_numbers(text, fold_constants, {"c": np.array(False)})


@pytest.mark.parametrize("op", ["Add", "Mul", "Div", "Sub"])
def test_bfloat16_is_exact(op) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(64).astype(ml_dtypes.bfloat16) for _ in range(2))
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.BFLOAT16), shape=ir.Shape([64]))
    values = [ir.Value(name=n, const_value=ir.tensor(v, name=n)) for n, v in (("a", a), ("b", b))]
    first = ir.node(op, values)
    second = ir.node("Add", [x, first.outputs[0]])
    first.outputs[0].name, second.outputs[0].name = "c", "y"
    second.outputs[0].type, second.outputs[0].shape = x.type, ir.Shape([64])
    graph = ir.Graph(
        [x], second.outputs, nodes=[first, second], initializers=values, opset_imports={"": 23}
    )
    model = ir.Model(graph, ir_version=10)
    assert run_passes(model, [fold_constants]).total == 1
    folded = model.graph.initializers["c"].const_value
    assert folded is not None
    exact = {"Add": np.add, "Mul": np.multiply, "Div": np.divide, "Sub": np.subtract}[op]
    expected = exact(a.astype(np.float32), b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert folded.dtype == ir.DataType.BFLOAT16
    assert folded.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("c = QuantizeLinear (a, b)  y = DequantizeLinear (c, b)", None),
        ("c = ai.coreai.norm (a, b)  y = Add (x, c)", None),
        ("c = MatMul (v, v)  y = Add (x, c)", None),
        ("c = RandomNormalLike (a)  y = Add (x, c)", None),
        ("c = ReduceSum (v)  y = Add (x, c)", "the order of a float sum is the runtime's choice"),
        ("c = ConstantOfShape (big)  y = Add (x, c)", "the result is bigger than the limit"),
        ("c = ConstantOfShape (some)  y = Add (x, c)", "the result is bigger than the limit"),
        ("c = Div (i, zero)  y = Gather (x, c)", "division by zero"),
        ("c = Gather (v, seven)  y = Add (x, c)", "inputs do not fit: IndexError"),
    ],
)  # fmt: skip
def test_what_stays(body, reason) -> None:
    text = f"""main (float[n] x) => (float[m] y) <float a = {{2}}, float b = {{3}}, float[2] v = {{1, 2}},
    int64[2] big = {{100000, 100000}}, int64[1] some = {{5000}}, int64[1] i = {{1}}, int64[1] zero = {{0}},
    int64[1] seven = {{7}}> {{ {body} }}"""
    leaves(text, fold_constants, reason)


def test_a_big_weight_is_never_read() -> None:
    def fail() -> ir.Tensor:
        raise AssertionError("the weight was read")

    model = parse(
        "main (float[n] x) => (float[n] y) <float[1] w = {1}> { c = Neg (w)  y = Add (x, c) }"
    )
    weight = ir.LazyTensor(fail, dtype=ir.DataType.FLOAT, shape=ir.Shape((LIMIT,)), name="w")
    model.graph.initializers["w"].const_value = weight
    report = run_passes(model, [fold_constants])
    assert [m.miss.reason for m in report.near_misses] == ["an input is bigger than the limit"]


def test_a_default_of_an_input_is_not_a_constant() -> None:
    leaves("main (float[1] s = {2}) => (float[1] y) { a = Neg (s)  y = Neg (a) }", fold_constants)


def test_an_attribute_of_the_caller() -> None:
    leaves(
        """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
        main (float[n] x) => (float[n] y) { y = ai.coreai.f <axis = 0> (x) }
        <domain: "ai.coreai", opset_import: ["": 23]>
        f <axis> (x) => (y) { k = Constant <value = float[1] {1}> ()
          c = Concat <axis: int = @axis> (k, k)  y = Add (x, c) }""",
        fold_constants,
        "an attribute is known only to the caller of the function",
    )


@pytest.mark.parametrize(
    ("dtype", "count", "folds"),
    [
        (ir.DataType.INT8, 255, True),
        (ir.DataType.INT8, 256, False),
        (ir.DataType.UINT4, 256, False),
        (ir.DataType.FLOAT16, 128, False),
        (ir.DataType.BOOL, 256, True),
        (ir.DataType.INT32, 256, True),
    ],
)
def test_data_is_not_stored_in_more_bits(dtype: ir.DataType, count: int, folds: bool) -> None:
    model = parse(
        "main (float[n] x) => (float[n] y) <float[1] w = {1}> "
        "{ c = Cast <to = 1> (w)  y = Add (x, c) }"
    )
    values = np.ones(count, dtype.numpy())
    weight = model.graph.initializers["w"]
    weight.const_value = ir.tensor(values, dtype=dtype, name="w")
    weight.type, weight.shape = ir.TensorType(dtype), ir.Shape([count])
    report = run_passes(model, [fold_constants])
    assert report.total == int(folds)
    reasons = [] if folds else ["the result stores data in more bits"]
    assert [m.miss.reason for m in report.near_misses] == reasons


@pytest.mark.parametrize(("count", "folds"), [(4096, True), (4097, False)])
def test_data_with_other_readers_is_not_stored_in_another_shape(count: int, folds: bool) -> None:
    model = parse(
        "main (float[n] x) => (float[n] y, float[n] z) <float[1] w = {1}, int64[2] s = {1, -1}> "
        "{ c = Reshape (w, s)  y = Add (x, c)  z = Mul (x, w) }"
    )
    weight = model.graph.initializers["w"]
    weight.const_value = ir.tensor(np.ones(count, np.float32), name="w")
    weight.shape = ir.Shape([count])
    report = run_passes(model, [fold_constants])
    assert report.total == int(folds)
    reasons = [] if folds else ["something else reads the data"]
    assert [m.miss.reason for m in report.near_misses] == reasons


HEAD = "main (float[batch, 128, 64] x) => (int64 z) "


def test_a_known_dim_of_a_partly_known_shape() -> None:
    text = HEAD + "<int64 one = {1}> { s = Shape (x)  n = Gather (s, one)  z = Add (n, n) }"
    expected = HEAD + "<int64 one = {1}, int64 n = {128}> { z = Add (n, n) }"
    report = rewrite(
        text,
        fold_shapes,
        1,
        HEAD + "<int64 one = {1}, int64 n = {128}> { s = Shape (x)  z = Add (n, n) }",
    )
    assert expected.count("Shape") == 0
    assert {m.miss.reason for m in report.near_misses} == {
        "the shape is not known in full",
        "a graph output keeps its node",
    }
    same_numbers(text, fold_shapes, {"x": np.zeros((2, 128, 64), np.float32)})


def test_arithmetic_on_dims() -> None:
    text = """main (float[batch, 128, 64] x) => (float[p, q] y) <int64[1] m = {-1}> {
      a = Shape <start = 1, end = 2> (x)
      b = Shape <start = -1> (x)
      c = Mul (a, b)
      t = Concat <axis = 0> (m, c)
      y = Reshape (x, t)
    }"""
    rewrite(
        text,
        fold_shapes,
        4,
        "main (float[batch, 128, 64] x) => (float[p, q] y) <int64[1] m = {-1}, int64[2] t = {-1, 8192}>"
        "{ y = Reshape (x, t) }".replace("<int64[1] m = {-1}, ", "<int64[1] m = {-1}, "),
    )
    same_numbers(text, fold_shapes, {"x": np.zeros((2, 128, 64), np.float32)})


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_full_shapes_and_sizes(opset) -> None:
    text = """main (float[2, 3] x) => (int64[2] y, int64 z) {
      s = Shape (x)  n = Size (x)  y = Neg (s)  z = Neg (n)
    }"""
    expected = "main (float[2, 3] x) => (int64[2] y, int64 z) <int64[2] s = {2, 3}, int64 n = {6}> { y = Neg (s)  z = Neg (n) }"
    rewrite(text, fold_shapes, 2, expected, opset=opset)
    same_numbers(text, fold_shapes, {"x": np.zeros((2, 3), np.float32)}, opset=opset)


def test_int32_stays_int32() -> None:
    text = """main (float[2, 3] x) => (int32[2] y) { s = Shape (x)  c = Cast <to = 6> (s)  y = Neg (c) }"""
    same_numbers(text, fold_shapes, {"x": np.zeros((2, 3), np.float32)})


def test_an_unknown_dim_stays() -> None:
    leaves(
        HEAD + "<int64 zero = {0}> { s = Shape (x)  z = Gather (s, zero) }",
        fold_shapes,
        "the shape is not known in full",
    )


def test_division_by_zero_stays_for_the_runtime() -> None:
    text = "main (float[0, 3] x) => (int64[2] z) <int64[1] k = {6}> { s = Shape (x)  q = Div (k, s)  z = Neg (q) }"
    rewrite(
        text,
        fold_shapes,
        1,
        "main (float[0, 3] x) => (int64[2] z) <int64[1] k = {6}, int64[2] s = {0, 3}> { q = Div (k, s)  z = Neg (q) }",
    )


def test_in_a_subgraph_that_reads_an_outer_value() -> None:
    text = """main (bool c, float[2, n] x) => (int64[1] y) {
      y = If (c) <
        then_branch = a () => (int64[1] t) { s = Shape <start = 0, end = 1> (x)  t = Neg (s) },
        else_branch = b () => (int64[1] e) { e = Shape <start = 1> (x) }>
    }"""
    same_numbers(text, fold_shapes, {"c": np.array(True), "x": np.zeros((2, 5), np.float32)})


CALLS = """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
main (float[n, 4] x) => (float[n, 4] y, float[n, 4] z)
<float[3, 4] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, float[4] scale = {1, 2, 3, 4}>
{ a = ai.coreai.add_bias <eps = 0.5> (table, scale)  b = Relu (a)  c = ai.coreai.add_bias (b, scale)
  d = ReduceSum <keepdims = 0> (c)  y = Add (x, d)  z = ai.coreai.add_bias (x, scale) }
"""
BODY = """<domain: "ai.coreai", opset_import: ["": 23]> add_bias <eps: float = 0.1> (x, scale) => (y) {
  e = Constant <value_float: float = @eps> ()  p = Mul (x, scale)  y = Add (p, e)
}"""


def test_calls_of_constants_become_their_bodies() -> None:
    model = parse(CALLS + BODY)
    assert run_passes(model, [inline_constant_calls]).total == 2
    calls = [node for node in model.graph if node.domain == "ai.coreai"]
    assert [node.outputs[0].name for node in calls] == ["z"]
    same_numbers(CALLS + BODY, inline_constant_calls, {"x": np.ones((2, 4), np.float32)})


def test_calls_without_kernels_become_their_bodies() -> None:
    text = (CALLS + BODY).replace("add_bias (x, scale)", "my_op (x, scale)")
    mine = BODY.replace("add_bias", "my_op")
    model = parse(text + mine)
    assert run_passes(model, [inline_calls_without_kernels]).total == 1
    calls = [node for node in model.graph if node.domain == "ai.coreai"]
    assert [node.op_type for node in calls] == ["add_bias", "add_bias"]
    # The attribute of the call is a constant, which later passes can read.
    assert "Constant" not in {node.op_type for node in model.graph}
    same_numbers(text + mine, inline_calls_without_kernels, {"x": np.ones((2, 4), np.float32)})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Identity (x)", ""),
        (
            """y = If (c) <then_branch = a () => (t) { t = Neg (x) },
            else_branch = b () => (u) { u = Relu (x) }>""",
            "the body has subgraphs",
        ),
        ("q = Neg (x)", "the body returns an input or a constant"),
    ],
)
def test_bodies_that_are_not_inlined(body: str, reason: str) -> None:
    returned = "x" if "q" in body else "y"
    text = f"""<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
    main (float[n] x, bool c) => (float[n] y) <float[1] w = {{2}}, bool[1] k = {{1}}>
    {{ a = ai.coreai.add_bias (w, k)  y = Add (x, a) }}
    <domain: "ai.coreai", opset_import: ["": 23]> add_bias (x, c) => ({returned}) {{ {body} }}"""
    report = run_passes(parse(text), [inline_constant_calls])
    assert report.total == (not reason)
    assert [miss.miss.reason for miss in report.near_misses] == [reason] * bool(reason)
