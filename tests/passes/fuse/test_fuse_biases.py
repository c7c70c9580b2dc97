"""Biases in bfloat16 and float16, and the activations after them, become add_bias."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.composites.activations import add_bias
from coreai_onnx.composites.products import gather_mm
from coreai_onnx.model.inventory import STANDARD_DOMAIN
from coreai_onnx.passes import Target
from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.fuse.fuse_biases import (
    functions_as_activations,
    fuse_biases,
    fuse_float32_biases,
)
from coreai_onnx.passes.order import ORDER
from tests.lower.checking import op_types, open_model, run_session
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

TEXT = (
    "main (bfloat16[n, 2] x, bfloat16[2] v, float[n, 2] f) => ({y}) "
    "<bfloat16[2] b = {{1, 2}}, float[2] w = {{1, 2.5}}, float[2] inexact = {{1, 1.001}}> {{ {body} }}"
)
WIDE = "float[n, 2] a = Cast <to = 1> (x) float[2] c = Cast <to = 1> (b)"
SUM = f"{WIDE} float[n, 2] p = Add (a, c)"
ROUNDED = "bfloat16[n, 2] y = Cast <to = 16> (p)"
WEIGHTS = "<bfloat16[2] b = {1, 2}, float[2] w = {1, 2.5}, float[2] inexact = {1, 1.001}>"
CALL = 'ai.coreai.add_bias<activation: string = "{}", version: int = 1> (x, b)'
GELU = """
<domain: "ai.coreai", opset_import: ["": 23]>
gelu <approximate: string = "none"> (input) => (output) { output = Gelu <approximate: string = @approximate> (input) }"""


def text(body: str, y: str = "bfloat16[n, 2] y") -> str:
    return TEXT.format(body=body, y=y)


@pytest.mark.parametrize("terms", ["a, c", "c, a"])
def test_a_sum_is_one_node(terms: str) -> None:
    before = text(f"{WIDE} float[n, 2] p = Add ({terms}) {ROUNDED}")
    fuses(
        before,
        fuse_biases,
        1,
        text(f"y = {CALL.format('none')}").replace(WEIGHTS, "<bfloat16[2] b = {1, 2}>"),
    )


def test_a_folded_bias_is_narrow_again() -> None:
    body = f"float[n, 2] a = Cast <to = 1> (x) float[n, 2] p = Add (a, w) {ROUNDED}"
    model = parse(text(body))
    assert run_passes(model, [fuse_biases, remove_dead_code]).counts["fuse_biases"] == 1
    (call,) = model.graph
    bias = call.inputs[1]
    assert bias is not None
    assert bias.const_value is not None
    assert bias.dtype == ir.DataType.BFLOAT16
    assert bias.const_value.numpy().tolist() == [1, 2.5]


@pytest.mark.parametrize(
    "body",
    [
        f"{WIDE} y = Add (a, c)",  # a sum in float32
        f"float[n, 2] a = Cast <to = 1> (x) float[n, 2] p = Add (a, inexact) {ROUNDED}",
        f"{SUM.replace('(b)', '(v)')} {ROUNDED}",  # no constant
        f"{WIDE} float[n, 2] p = Sub (a, c) {ROUNDED}",
        f"{WIDE} float[n, 2] p = Add (a, a) {ROUNDED}",
    ],
)
def test_others_stay(body: str) -> None:
    leaves(text(body, "float[n, 2] y" if "y = Add" in body else "bfloat16[n, 2] y"), fuse_biases)


@pytest.mark.parametrize("rest", ["", "bfloat16[2, n] t = Transpose <perm = [1, 0]> (s)"])
def test_an_activation_is_computed_with_the_bias(rest: str) -> None:
    """It commutes with what moves its input."""
    last = "t" if rest else "s"
    moved = f"{rest} y = ai.coreai.gelu ({last})"
    before = text(f"{SUM} bfloat16[n, 2] s = Cast <to = 16> (p) {moved}")
    shape = "2, n" if rest else "n, 2"
    model = parse(before.replace("bfloat16[n, 2] y", f"bfloat16[{shape}] y") + GELU)
    assert run_passes(model, [fuse_biases]).total == 2
    types = [op for op in op_types(model) if op not in ("Cast", "Add")]
    assert types == ["add_bias.gelu", *["Transpose"] * bool(rest)]
    assert model.graph.outputs[0].name == "y"
    names = {value.name for node in model.graph for value in node.outputs}
    assert not names & {"s", "t"}  # these values are gone


@pytest.mark.parametrize(
    ("rest", "outputs"),
    [
        (f"{ROUNDED.replace('y', 's')} z = Identity (s)", "bfloat16[n, 2] y, bfloat16[n, 2] z"),
        ("s = Cast <to = 16> (p)", "bfloat16[n, 2] y, bfloat16[n, 2] s"),
    ],
)
def test_a_sum_that_is_read_again_has_no_activation(rest: str, outputs: str) -> None:
    body = f"{SUM} {rest} y = ai.coreai.gelu (s)"
    model = parse(text(body, outputs) + GELU)
    assert run_passes(model, [fuse_biases]).total == 1
    assert {"add_bias", "gelu"} <= {*op_types(model)}


def test_a_second_activation_stays() -> None:
    body = f"{SUM} bfloat16[n, 2] s = Cast <to = 16> (p) bfloat16[n, 2] t = ai.coreai.gelu (s) y = ai.coreai.gelu (t)"
    model = parse(text(body) + GELU)
    assert run_passes(model, [fuse_biases]).total == 2
    assert op_types(model).count("gelu") == 1


ACTIVATIONS = {
    "none": torch.nn.Identity(),
    "gelu": torch.nn.GELU(),
    "gelu_tanh": torch.nn.GELU(approximate="tanh"),
    "silu": torch.nn.SiLU(),
}


@pytest.mark.parametrize("shape", [(2, 37, 40), (37, 40), (1, 40)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_body_and_kernel_compute_the_composites(
    dtype: torch.dtype, activation: str, shape: tuple[int, ...], kernels: Path
) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(40, 24)
    for parameter in linear.parameters():
        parameter.data.abs_()  # no sum cancels: a bias is added after a rounding, not before it
    module = torch.nn.Sequential(linear, ACTIVATIONS[activation]).to(dtype).eval()
    x = torch.rand(shape).to(dtype)
    model = coreai_onnx.convert(module, (x,)).optimize(target="kernels").model
    name = "add_bias" if activation == "none" else f"add_bias.{activation}"
    assert [op for op in op_types(model) if not op.startswith("gather_mm")] == [name]
    with torch.no_grad():
        product = gather_mm(x, linear.weight, transpose_rhs=1)
        expected = [add_bias(product, linear.bias, activation=activation)]
        if dtype == torch.bfloat16:  # float16 is compared with less than one unit in the last place
            assert_close(expected, [module(x)])
    assert_close(run_session(open_model(model), [x]), expected)
    model.functions.clear()
    assert_close(run_session(open_model(model, library=kernels), [x]), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_only_the_kernels_target_has_it(dtype: torch.dtype) -> None:
    module, x = torch.nn.Linear(64, 40).to(dtype), torch.ones(3, 64).to(dtype)
    for target in get_args(Target):
        program = coreai_onnx.convert(module, (x,)).optimize(target=target)
        assert ("add_bias" in op_types(program.model)) == (target == "kernels")


FLOAT32 = (
    "main (float[n, 2] x, float[n, m] z) => (float[n, {width}] y) "
    "<float[2] b = {{1, 2}}> {{ {body} }}"
)


@pytest.mark.parametrize(
    ("body", "count"), [("float[n, 2] s = Add (x, b) y = Gelu (s)", 2), ("y = Gelu (x)", 1)]
)
def test_activations_of_float32(body: str, count: int) -> None:
    model = parse(FLOAT32.format(width=2, body=body))
    counts = run_passes(model, [fuse_float32_biases, remove_dead_code]).counts
    assert counts["fuse_float32_biases"] == count
    assert [node.op_type for node in model.graph] == ["add_bias.gelu"]
    x = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    feeds = {"x": x, "z": x}
    assert_close(run(model, feeds)[0], run(parse(FLOAT32.format(width=2, body=body)), feeds)[0])


@pytest.mark.parametrize("rows", [0, 3])
def test_an_activation_of_rows_of_unknown_size(rows: int) -> None:
    text = "main (float[n, 2, m] x) => (float[n, 2, m] y) { y = Gelu (x) }"
    model = parse(text)
    assert run_passes(model, [fuse_float32_biases]).counts["fuse_float32_biases"] == 1
    assert "Gelu" not in {node.op_type for node in model.graph}
    feeds = {"x": np.random.default_rng(0).standard_normal((rows, 2, 5)).astype(np.float32)}
    assert_close(run(model, feeds)[0], run(parse(text), feeds)[0])


def test_an_activation_without_a_known_size_stays() -> None:
    leaves(
        FLOAT32.format(width="m", body="y = Gelu (z)"),
        fuse_float32_biases,
        "the size of no axis is known",
    )


SPELLED = (
    "h = Constant <value_float = {half}> () p = Constant <value_float = 3.0> () "
    "c = Constant <value_float = 0.044715> () q = Constant <value_float = 0.7978845608> () "
    "o = Constant <value_float = 1.0> () float[n, 2] a = Mul (x, h) float[n, 2] k = Pow (x, p) "
    "float[n, 2] l = Mul (k, c) float[n, 2] s = Add (x, l) float[n, 2] u = Mul (s, q) "
    "float[n, 2] t = Tanh (u) float[n, 2] v = Add (t, o) y = Mul (a, v)"
)


def test_gelu_as_transformers_spells_it() -> None:
    before = FLOAT32.format(width=2, body=SPELLED.format(half=0.5))
    model = parse(before)
    run_passes(model, [*ORDER, fuse_float32_biases])
    assert [node.op_type for node in model.graph] == ["add_bias.gelu_tanh"]
    x = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    feeds = {"x": x, "z": x}
    assert_close(run(model, feeds)[0], run(parse(before), feeds)[0])
    model = parse(FLOAT32.format(width=2, body=SPELLED.format(half=0.25)))
    run_passes(model, [*ORDER, fuse_float32_biases])
    assert "Tanh" in {node.op_type for node in model.graph}


FUNCTIONS = "main (float[{dims}] x) => (float[{dims}] y) {{ y = {op} (x) }}"


@pytest.mark.parametrize("op", ["Exp", "Sigmoid", "Tanh"])
@pytest.mark.parametrize(
    ("dims", "size", "width"),
    [("n, 40", (3, 40), 40), ("n, 4, m", (2, 4, 5), 4), ("n", (7,), 1), ("0, m", (0, 3), 1)],
)
def test_functions_as_activations(op: str, dims: str, size: tuple[int, ...], width: int) -> None:
    text = FUNCTIONS.format(dims=dims, op=op)
    model = parse(text)
    assert run_passes(model, [functions_as_activations]).total == 1
    call = next(node for node in model.graph if node.domain == STANDARD_DOMAIN)
    assert call.op_type == f"add_bias.{op.lower()}"
    assert call.inputs[1].const_value.shape == (width,)
    x = 5 * np.random.default_rng(0).standard_normal(size).astype(np.float32)
    assert_close(run(model, {"x": x})[0], run(parse(text), {"x": x})[0])


def test_functions_of_other_dtypes_stay() -> None:
    for dtype in ("double[n, 4]", "float[]"):
        text = f"main ({dtype} x) => ({dtype} y) {{ y = Exp (x) }}"
        leaves(text, functions_as_activations, "it is not known to have rows of float32")
