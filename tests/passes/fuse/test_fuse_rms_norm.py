from __future__ import annotations

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx.passes.cleanup.remove_noops import remove_identities
from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.fuse.norms import fuse_rms_norm
from coreai_onnx.targets.opsets import OPSETS
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

HEAD = "main (float[b, 4] x) => (float[b, 4] y) <float[4] w = {1, 2, 3, 4}, float two = {2}, float half = {-0.5}, float one = {1}, float e = {0.01}, int64[1] ax = {-1}>"
MEAN = "p = Pow (x, two)  m = ReduceMean <keepdims = 1> (p, ax)  s = Add (m, e)"
SPELLINGS = [
    f"{MEAN}  q = Sqrt (s)  r = Reciprocal (q)  float[b, 4] n = Mul (x, r)  y = Mul (w, n)",
    f"{MEAN}  q = Sqrt (s)  r = Div (one, q)  float[b, 4] n = Mul (r, x)  y = Mul (n, w)",
    f"{MEAN}  q = Sqrt (s)  float[b, 4] n = Div (x, q)  y = Mul (n, w)",
    f"{MEAN}  r = Pow (s, half)  float[b, 4] n = Mul (x, r)  y = Mul (n, w)",
    f"{MEAN.replace('Pow (x, two)', 'Mul (x, x)')}  q = Sqrt (s)  float[b, 4] n = Div (x, q)  y = Mul (n, w)",
]
FUSED = "main (float[b, 4] x) => (float[b, 4] y) <float[4] w = {1, 2, 3, 4}> { y = ai.coreai.rms_norm <axes = [-1], eps = 0.01, version = 1> (x, w) }"


@pytest.mark.parametrize("body", SPELLINGS)
def test_spelled_out_norms_are_one_node(body: str) -> None:
    feeds = {"x": np.array([[1, -2, 3, 0.5], [0, 0, 1e-3, 0]], np.float32)}
    model = fuses(f"{HEAD} {{ {body} }}", fuse_rms_norm, 1, FUSED, feeds)
    (function,) = model.functions.values()
    assert [node.op_type for node in function] == ["RMSNormalization"]


def test_below_opset_23_the_body_is_spelled_out() -> None:
    feeds = {"x": np.array([[1, -2, 3, 0.5]], np.float32)}
    model = fuses(f"{HEAD} {{ {SPELLINGS[0]} }}", fuse_rms_norm, 1, FUSED, feeds, opset=18)
    (function,) = model.functions.values()
    assert "Div" in [node.op_type for node in function]


def test_half_precision_is_widened_inside() -> None:
    text = """main (float16[b, 2] x) => (float16[b, 2] y) <float16[2] w = {1, 2}, float two = {2}, float e = {0.01}, int64[1] ax = {-1}> {
      float[b, 2] z = Cast <to = 1> (x)  p = Pow (z, two)  m = ReduceMean <keepdims = 1> (p, ax)  s = Add (m, e)
      q = Sqrt (s)  float[b, 2] n = Div (z, q)  float16[b, 2] c = Cast <to = 10> (n)  y = Mul (w, c)
    }"""
    expected = FUSED.replace("[4] w = {1, 2, 3, 4}", "[2] w = {1, 2}").replace("4]", "2]")
    fuses(
        text,
        fuse_rms_norm,
        1,
        expected.replace("float[", "float16["),
        {"x": np.array([[1, -2], [0.5, 8]], np.float16)},
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("{-1}", "{0}", None),  # another axis
        ("float two = {2}", "float two = {3}", None),
        ("float[4] w = {1, 2, 3, 4}", "float[1] w = {1}", "scale must have the size of the last axis, 4, got [1]"),
    ],
)  # fmt: skip
def test_what_is_no_norm_stays(old: str, new: str, reason: str | None) -> None:
    leaves(f"{HEAD} {{ {SPELLINGS[0]} }}".replace(old, new), fuse_rms_norm, reason)


def test_another_body_of_the_model_is_not_taken() -> None:
    text = f"""{HEAD.replace("(float[b, 4] y)", "(float[b, 4] y, float[b, 4] z)")} {{ {SPELLINGS[0]}  z = ai.coreai.rms_norm (x) }}
<domain: "ai.coreai", opset_import: ["": 23]>
rms_norm (input) => (output) {{ output = Neg (input) }}"""
    leaves(text, fuse_rms_norm, "the model's rms_norm has another body")


class OwnNorm(torch.nn.Module):
    """A norm that a model spells out itself."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * scaled.to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("opset", OPSETS)
def test_a_norm_of_torch_and_one_spelled_out_share_a_body(opset: int, dtype: torch.dtype) -> None:
    norms = torch.nn.RMSNorm(8, eps=1e-6), OwnNorm(8)
    model = torch.nn.Sequential(norms[0], torch.nn.Linear(8, 8), norms[1]).to(dtype)
    x = torch.randn(3, 8, dtype=dtype)
    program = coreai_onnx.convert(model, (x,), opset_version=opset)
    assert program.composites() == {"ai.coreai::rms_norm": 2}
    (function,) = program.model.functions.values()
    assert function.name == "rms_norm"
    (actual,) = program.run(x, kernels=False)
    assert_close(actual, model(x))


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", ["bfloat16", "double"])
def test_formulas_in_other_dtypes_share_the_body_of_a_converted_model(
    dtype: str, opset: int
) -> None:
    wide, code = ("float", 16) if dtype == "bfloat16" else ("double", 11)
    text = f"""main ({dtype}[b, 4] x, {dtype}[4] w) => ({dtype}[b, 4] y) <{wide} two = {{2}}, {wide} e = {{0.01}}, int64[1] ax = {{-1}}> {{
      {wide}[b, 4] a = Cast <to = {1 if code == 16 else 11}> (x)  p = Pow (a, two)  m = ReduceMean <keepdims = 1> (p, ax)  s = Add (m, e)
      q = Sqrt (s)  {wide}[b, 4] n = Div (a, q)  {dtype}[b, 4] c = Cast <to = {code}> (n)  {dtype}[b, 4] z = Mul (w, c)
      y = ai.coreai.rms_norm <axes = [-1], eps = 0.01, version = 1> (z, w)
    }}"""
    model = parse(text.replace("Cast <to = 11>", "Identity"), opset)
    known = Case("rms_norm", ((2, 4), (4,)))
    torch_dtype = torch.bfloat16 if dtype == "bfloat16" else torch.float64
    model.functions.update(known.model(torch_dtype, dynamic=True, opset=opset).functions)
    run_passes(model, [remove_identities, fuse_rms_norm, remove_dead_code])
    assert [node.op_type for node in model.graph] == ["rms_norm", "rms_norm"]
    assert len(model.functions) == 1


@pytest.mark.parametrize("size", [8, 256])  # the small scale is stored in float32
def test_casts_around_the_ops_of_bfloat16_hide_no_norm(size: int) -> None:
    module, x = OwnNorm(size).bfloat16(), torch.randn(3, size).bfloat16()
    program = coreai_onnx.convert(module, (x,))
    assert [node.op_type for node in program.model.graph] == ["rms_norm"]
    with torch.no_grad():
        assert_close(list(program.run(x, kernels=False)), [module(x)])


def test_a_scale_with_more_bits_than_the_norm_stays() -> None:
    """The composite would round the scale, or apply it before a rounding."""
    text = """main (bfloat16[b, 2] x) => (bfloat16[b, 2] y) <float[2] w = {1.001, 2}, float two = {2}, float e = {0.01}, int64[1] ax = {-1}> {
      float[b, 2] z = Cast <to = 1> (x)  p = Pow (z, two)  m = ReduceMean <keepdims = 1> (p, ax)  s = Add (m, e)
      q = Sqrt (s)  float[b, 2] n = Div (z, q)  bfloat16[b, 2] c = Cast <to = 16> (n)
      float[b, 2] d = Cast <to = 1> (c)  float[b, 2] t = Mul (w, d)  y = Cast <to = 16> (t)
    }"""
    leaves(text, fuse_rms_norm, "scale must have the dtype of the input")


@pytest.mark.parametrize("wide", ["two", "e"])
def test_constants_of_more_axes_stay(wide: str) -> None:
    """They give the result more axes than the composite."""
    text = """main (float[4] x) => (float y) <float[4] w = {1, 2, 3, 4}, float two = {2}, float e = {0.01}, int64[1] ax = {-1}> {
      p = Pow (x, two)  m = ReduceMean <keepdims = 1> (p, ax)  s = Add (m, e)
      q = Sqrt (s)  n = Div (x, q)  y = Mul (w, n)
    }"""
    model = parse(text.replace(f"float {wide} =", f"float[1, 1, 1, 1] {wide} ="))
    model.graph.outputs[0].shape = None
    assert run_passes(model, [fuse_rms_norm]).total == 0
    assert run(model, {"x": np.ones(4, np.float32)})[0].shape == (1, 1, 1, 4)
