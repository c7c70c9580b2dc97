"""Products of float32 become gather_mm."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.passes.fuse.fuse_products import (
    fuse_products,
    fuse_tiled_products,
    sums_in_order,
)
from coreai_onnx.passes.order import ORDER
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

TEXT = (
    "main (float[n, 2] x, float[2, 3] v, float[b, 3, 2] z, float[3] r) => (float[n, 3] y) "
    "<float[2, 3] w = {{1, 2, 3, 4, 5, 6}}> {{ {body} }}"
)


def call(factors: str, transposed: int = 0) -> str:
    name = "gather_mm" + ".transposed" * transposed
    return (
        f"ai.coreai.{name}<num_batch_axes: int = 0, transpose_rhs: int = {transposed}, "
        f"version: int = 1> ({factors})"
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = MatMul (x, w)", f"y = {call('x, w')}"),
        (
            "float[n, 3] m = MatMul (x, w) float[n, 3] k = MatMul (x, v) y = Add (m, k)",
            f"float[n, 3] m = {call('x, w')} float[n, 3] k = {call('x, v')} y = Add (m, k)",
        ),
        (
            "y = Gemm (x, w, r)",
            f"float[n, 3] y_gather_mm = {call('x, w')} y = Add (y_gather_mm, r)",
        ),
    ],
)
def test_a_product_is_one_node(body: str, expected: str) -> None:
    fuses(
        TEXT.format(body=body), fuse_products, body.count("MatMul") or 1, TEXT.format(body=expected)
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Gemm <alpha = 0.5> (x, w, r)", "the product is scaled or transposed"),
        ("s = Sum (r) y = MatMul (x, s)", "the second factor is not known to be a matrix"),
        ("y = Add (x, x)", None),
    ],
)
def test_what_stays(body: str, reason: str | None) -> None:
    leaves(TEXT.format(body=body), fuse_products, reason)


SUMS = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceL2": lambda x, **settings: np.sqrt(np.square(x).sum(**settings)),
}


@pytest.mark.parametrize("op", SUMS)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    ("dims", "axes", "call"),
    [
        ("n, 3, 20", "-1", "gather_mm"),
        ("n, 3, 20", "1", "Add"),
        ("n, 20, 3", "1", "gather_mm"),
        ("n, 3, w", "2", "gather_mm"),
        ("n, 3, w, 4", "2, 1", "gather_mm"),
    ],
)
def test_a_sum(op: str, keepdims: int, dims: str, axes: str, call: str) -> None:
    model = parse(
        f"main (float[{dims}] x) => (float[{dims}] y) {{ a = Constant <value_ints = [{axes}]> () "
        f"y = {op} <keepdims = {keepdims}> (x, a) }}"
    )
    model.graph.outputs[0].shape = None
    assert run_passes(model, [*ORDER, sums_in_order]).counts["sums_in_order"] == 1
    ops = {node.op_type for node in model.graph}
    assert call in ops
    assert op not in ops
    sizes = [{"n": 2, "w": 13}.get(dim) or int(dim) for dim in dims.split(", ")]
    x = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    expected = SUMS[op](x, axis=tuple(map(int, axes.split(","))), keepdims=bool(keepdims))
    assert_close(run(model, {"x": x})[0], expected)


@pytest.mark.parametrize("dims", ["n, 3, 7, 7", "n, 3, w"])
def test_a_mean_of_planes(dims: str) -> None:
    ones = ", 1" * dims.count(", ")
    text = f"main (float[{dims}] x) => (float[n, 3{ones[3:]}] y) {{ y = GlobalAveragePool (x) }}"
    model = parse(text)
    assert run_passes(model, [*ORDER, sums_in_order]).counts["sums_in_order"] == 1
    assert "GlobalAveragePool" not in {node.op_type for node in model.graph}
    sizes = [{"n": 2, "w": 13}.get(dim) or int(dim) for dim in dims.split(", ")]
    feeds = {"x": np.random.default_rng(0).standard_normal(sizes).astype(np.float32)}
    assert_close(run(model, feeds)[0], run(parse(text), feeds)[0])


def test_sums_that_stay() -> None:
    text = "main (float[n, 2] x) => (float[] y) {{ y = ReduceSum <keepdims = 0> ({}) }}"
    leaves(text.format("x"), sums_in_order, "the axes are not known, or are all axes")
    leaves(
        "main (int64[n, 2] x) => (int64[n] y) { a = Constant <value_ints = [1]> () "
        "y = ReduceSum <keepdims = 0> (x, a) }",
        sums_in_order,
        None,
    )


def test_a_model_with_another_gather_mm() -> None:
    body = """
<domain: "ai.coreai", opset_import: ["": 23]>
gather_mm (a, b) => (c) { c = Add (a, b) }"""
    model = parse(TEXT.format(body="s = ai.coreai.gather_mm (x, x) y = MatMul (s, w)") + body)
    next(iter(model.graph)).outputs[0].shape = ir.Shape(["n", 2])
    next(iter(model.graph)).outputs[0].dtype = ir.DataType.FLOAT
    run_passes(model, [fuse_products])
    assert [node.op_type for node in model.graph] == ["gather_mm", "gather_mm.rows"]


def test_constant_factors_for_tiles() -> None:
    both = "float[n, 3] m = {} float[n, 3] k = MatMul (x, v) y = Add (m, k)"
    tiled = call("x, w").replace("gather_mm", "gather_mm.tiles")
    text = TEXT.format(body=both.format("MatMul (x, w)"))
    fuses(text, fuse_tiled_products, 1, TEXT.format(body=both.format(tiled)))
    leaves(
        TEXT.format(body="y = MatMul (x, v)"),
        fuse_tiled_products,
        "the second factor is not constant",
    )
