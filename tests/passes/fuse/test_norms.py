from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.composites.declaration import FLOAT_DTYPES
from coreai_onnx.passes.cleanup.remove_noops import remove_identities
from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.engine.bodies import outline
from coreai_onnx.passes.engine.importer import Importer
from coreai_onnx.passes.fuse.norms import (
    fuse_rms_norm,
    fuse_skip_norms,
    fuse_softmax,
    narrow_norms,
)
from coreai_onnx.targets.opsets import OPSETS
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes
from tests.support.composite_calls import Case
from tests.support.composite_cases import CASES
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


NARROW = """main (float16[b, 2] x) => (float16[b, 2] y) <float[2] w = {1.001, -2}> {
  float[b, 2] z = Cast <to = 1> (x)  float[b, 2] n = ai.coreai.rms_norm <axes = [-1], eps = 0.01, version = 1> (z, w)
  y = Cast <to = 10> (n) }"""


def test_a_norm_in_float32_between_casts() -> None:
    """Its scale keeps bits that the input does not have."""
    text, x = NARROW + RMS.format(name="rms_norm"), np.array([[1, -2], [0.5, 8]], np.float16)
    model = parse(text)
    wanted = run(model, {"x": x})
    assert run_passes(model, [narrow_norms, remove_dead_code]).counts["narrow_norms"] == 1
    assert [node.op_type for node in model.graph] == ["rms_norm.wide_scale"]
    np.testing.assert_array_equal(run(model, {"x": x})[0], wanted[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y = Cast", "v = Neg (n)  y = Cast"),  # read in float32
        ("float16[b, 2] x", "bfloat16[b, 2] x"),  # of another dtype
        ("Cast <to = 1> (x)", "Relu (x)"),
        ("float[b, 2] z = Cast <to = 1>", "double[b, 2] z = Cast <to = 11>"),
        ("axes = [-1]", "axes = [0]"),
    ],
)
def test_other_norms_in_float32_stay(old: str, new: str) -> None:
    leaves(NARROW.replace(old, new) + RMS.format(name="rms_norm"), narrow_norms)


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


NORMS_HEAD = "main (float[n, 2] x, float[{r}] r) => (float[n, 2] y, float[n, 2] z) <float[2] w = {{1, 2}}, float[2] b = {{3, 4}}> {{ {body} }}"


RMS = """
<domain: "ai.coreai", opset_import: ["": 23]>
{name} <axes, eps: float> (input, scale) => (output) {{ output = RMSNormalization <axis = -1, epsilon: float = @eps> (input, scale) }}"""


LAYER = """
<domain: "ai.coreai", opset_import: ["": 23]>
layer_norm <axes, eps: float> (input, scale, bias) => (output) { output = LayerNormalization <axis = -1, epsilon: float = @eps> (input, scale, bias) }"""


FEEDS = {"x": np.array([[1, 2], [-3, 1]], np.float32), "r": np.array([[0, 5], [3, 7]], np.float32)}


ATTRS = "<axes = [-1], eps = 0.01, version = 1>"


@pytest.mark.parametrize(
    ("norm", "rest", "function"),
    [("rms_norm", "w", RMS.format(name="rms_norm")), ("layer_norm", "w, b", LAYER)],
)
def test_a_residual_and_its_norm_are_one_node(norm: str, rest: str, function: str) -> None:
    body = f"s = Add (x, r)  y = ai.coreai.{norm} {ATTRS} (s, {rest})  z = Neg (s)"
    model = fuses(
        NORMS_HEAD.format(r="n, 2", body=body) + function,
        fuse_skip_norms,
        1,
        NORMS_HEAD.format(
            r="n, 2", body=f"y, s = ai.coreai.skip_{norm} {ATTRS} (x, r, {rest})  z = Neg (s)"
        ).replace(", float[2] b = {3, 4}" if norm == "rms_norm" else "\0", ""),
        FEEDS,
    )
    functions = {f.name: f for f in model.functions.values()}
    assert set(functions) == {norm, f"skip_{norm}"}
    adds = "Sum" if norm == "layer_norm" else "Add"  # onnxruntime would fuse Add and the norm
    assert functions[f"skip_{norm}"][0].op_type == adds


def residual(case: Case, dtype: torch.dtype, opset: int) -> ir.Model:
    """Return the model of a norm whose input is a sum."""
    model = case.model(dtype, dynamic=False, opset=opset)
    total = model.graph.inputs[0]
    terms = [ir.Value(name=n, type=total.type, shape=total.shape) for n in ("x", "skip")]
    add = ir.node("Add", terms, name="add")
    add.outputs[0].type, add.outputs[0].shape = total.type, total.shape
    ir.convenience.replace_all_uses_with(total, add.outputs[0])
    model.graph.inputs[:1] = terms
    model.graph.insert_before(model.graph[0], add)
    add.outputs[0].name = "s"
    return model


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("skip", [c for c in CASES if c.composite.startswith("skip_")], ids=str)
def test_the_body_is_that_of_the_writer(skip: Case, dtype: str, opset: int) -> None:
    wide = {index - 1: own for index, own in skip.dtypes.items()}
    name = skip.composite.removeprefix("skip_")
    norm = Case(name, (skip.shapes[0], *skip.shapes[2:]), skip.attributes, wide)
    model = residual(norm, getattr(torch, dtype), opset)
    assert run_passes(model, [fuse_skip_norms]).total == 1
    (call,) = model.graph
    assert call.op_type == skip.composite
    converted = skip.model(getattr(torch, dtype), dynamic=True, opset=opset)
    (wanted,) = converted.functions.values()
    (made,) = (f for f in model.functions.values() if f.name == skip.composite)
    assert outline(Importer().function(made)) == outline(Importer().function(wanted))
    assert made.attributes.keys() == wanted.attributes.keys()
    assert [value.name for value in made.inputs] == [value.name for value in wanted.inputs]
    assert made.graph.doc_string == wanted.graph.doc_string


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_a_body_that_a_converted_model_has_already_is_called(opset: int) -> None:
    """A module that is externalized as the composite has the body of the writer."""
    skip = Case("skip_rms_norm", ((2, 5, 8), (2, 5, 8), (8,)))
    model = residual(Case("rms_norm", ((2, 5, 8), (8,))), torch.float32, opset)
    (known,) = skip.model(torch.float32, dynamic=True, opset=opset).functions.values()
    model.functions[known.identifier()] = known
    assert run_passes(model, [fuse_skip_norms]).total == 1
    assert [f.name for f in model.functions.values()] == ["rms_norm", "skip_rms_norm"]


def test_two_dtypes_have_two_bodies() -> None:
    text = """main (float[n, 2] x, float[n, 2] r, float[2] w, float16[n, 2] a, float16[n, 2] b, float16[2] v) => (float[n, 2] y, float16[n, 2] z) {
      s = Add (x, r)  y = ai.coreai.rms_norm ATTRS (s, w)  t = Add (a, b)  z = ai.coreai.rms_norm ATTRS (t, v) }"""
    model = parse(text.replace("ATTRS", ATTRS) + RMS.format(name="rms_norm"))
    assert run_passes(model, [fuse_skip_norms]).total == 2
    assert [n.op_type for n in model.graph] == ["skip_rms_norm", "skip_rms_norm.float16"]


def test_a_body_that_a_file_has_already_is_called() -> None:
    body = f"s = Add (x, r)  y = ai.coreai.layer_norm {ATTRS} (s, w, b)  z = Neg (s)"
    skip = """
<domain: "ai.coreai", opset_import: ["": 23, "ai.coreai": 1]>
skip_layer_norm <axes, eps: float = 1e-05, version: int = 1> (input, skip, scale, bias) => (output, sum) {
  sum = Sum (input, skip)
  output = LayerNormalization <axis = -1, epsilon: float = @eps> (sum, scale, bias)
}"""
    model = parse(NORMS_HEAD.format(r="n, 2", body=body) + LAYER + skip)
    assert run_passes(model, [fuse_skip_norms]).total == 1
    assert [n.op_type for n in model.graph] == ["skip_layer_norm", "Neg"]


def test_a_scale_that_follows_from_constants() -> None:
    body = f"c = Exp (b)  s = Add (x, r)  y = ai.coreai.rms_norm {ATTRS} (s, c)  z = Neg (s)"
    model = parse(NORMS_HEAD.format(r="n, 2", body=body) + RMS.format(name="rms_norm"))
    wanted = run(model, FEEDS)
    assert run_passes(model, [fuse_skip_norms]).total == 1
    for a, b in zip(run(model, FEEDS), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_variant_keeps_its_word() -> None:
    """A dot is no part of a name in ONNX's text form, so the call is renamed."""
    body = f"s = Add (x, r)  y = ai.coreai.norm {ATTRS} (s, w)  z = Neg (s)"
    model = parse(NORMS_HEAD.format(r="n, 2", body=body) + RMS.format(name="norm"))
    wanted = run(model, FEEDS)
    (function,) = list(model.functions.values())
    function.name = "rms_norm.wide_scale"
    model.functions.clear()
    model.functions[function.identifier()] = function
    model.graph[1].op_type = "rms_norm.wide_scale"
    assert run_passes(model, [fuse_skip_norms]).total == 1
    assert [n.op_type for n in model.graph] == ["skip_rms_norm.wide_scale", "Neg"]
    for a, b in zip(run(model, FEEDS), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("shape", "scale", "reason"),
    [
        ("1, 2", "w", "the terms are not known to have the same shape"),
        ("n, 2", "c", "scale or bias is computed"),
    ],
)
def test_others_stay(shape: str, scale: str, reason: str) -> None:
    body = f"c = Exp (r)  s = Add (x, r)  y = ai.coreai.rms_norm {ATTRS} (s, {scale})  z = Neg (s)"
    leaves(
        NORMS_HEAD.format(r=shape, body=body) + RMS.format(name="rms_norm"), fuse_skip_norms, reason
    )


class Residual(torch.nn.Module):
    """A norm of a sum, and the sum."""

    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + skip
        return self.norm(total), total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm", [torch.nn.LayerNorm, torch.nn.RMSNorm])
def test_every_dtype_is_one_node(norm: type[torch.nn.Module], dtype: torch.dtype) -> None:
    """Casts around the sum of bfloat16 hide no pattern."""
    module = Residual(norm(256)).to(dtype)
    x, skip = torch.randn(2, 3, 256, dtype=dtype), torch.randn(2, 3, 256, dtype=dtype)
    program = coreai_onnx.convert(module, (x, skip))
    assert [n.op_type.partition("_")[0] for n in program.model.graph] == ["skip"]
    with torch.no_grad():
        assert_close(list(program.run(x, skip, kernels=False)), list(module(x, skip)))


SOFTMAX = "ai.coreai.softmax <version: int = 1>"


@pytest.mark.parametrize("axis", ["", "<axis = -1>", "<axis = 2>"])
def test_a_softmax_of_rows(axis: str) -> None:
    head = "main (float[n, 3, m] x) => (float[n, 3, m] y)"
    x = np.random.default_rng(0).standard_normal((2, 3, 300)).astype(np.float32)
    x[1, 2, 5] = -np.inf
    expected = f"{head} {{ y = {SOFTMAX} (x) }}"
    fuses(f"{head} {{ y = Softmax {axis} (x) }}", fuse_softmax, 1, expected, {"x": x})


@pytest.mark.parametrize("axis", [1, -2])
def test_a_softmax_of_columns_is_transposed(axis: int) -> None:
    head = "main (float16[n, 3, 5] x) => (float16[n, 3, 5] y)"
    turn = "Transpose <perm = [0, 2, 1]>"
    body = f"y_transpose = {turn} (x) y_softmax = {SOFTMAX} (y_transpose) y = {turn} (y_softmax)"
    x = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float16)
    before = f"{head} {{ y = Softmax <axis = {axis}> (x) }}"
    fuses(before, fuse_softmax, 1, f"{head} {{ {body} }}", {"x": x})


def test_a_softmax_of_an_axis_of_an_unknown_rank_stays() -> None:
    leaves(
        "main (float x) => (float y) { a = Loop (x) y = Softmax <axis = 1> (a) }",
        fuse_softmax,
        "the rank is not known",
    )
