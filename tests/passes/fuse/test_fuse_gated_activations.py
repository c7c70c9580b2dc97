from __future__ import annotations

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx.passes.fuse.fuse_gated_activations import fuse_gated_activations
from tests.passes.rewriting import fuses, leaves, parse, run, run_passes
from tests.support.tolerances import assert_close

HEAD = "main (float[n, 2] g, float[{u}] u) => (float[n, 2] y{more}) <float root = {{1.4142135}}, float one = {{1}}, float half = {{0.5}}> {{ {body} }}"
SILU = """
<domain: "ai.coreai", opset_import: ["": 23]>
silu (input) => (output) { s = Sigmoid (input)  output = Mul (input, s) }"""
GELU = """
<domain: "ai.coreai", opset_import: ["": 23]>
gelu <approximate: string = "none"> (input) => (output) { output = Gelu <approximate: string = @approximate> (input) }"""
FEEDS = {
    "g": np.array([[1, -2], [0.5, 8]], np.float32),
    "u": np.array([[2, 3], [-1, 0.1]], np.float32),
}
SPELLED = "s = Sigmoid (g)  float[n, 2] a = Mul (g, s)  y = Mul (a, u)"
CASES = [
    ("swiglu", "", SPELLED, ""),
    ("swiglu", "", "float[n, 2] a = ai.coreai.silu (g)  y = Mul (u, a)", SILU),
    ("geglu", "none", "float[n, 2] a = Gelu (g)  y = Mul (a, u)", ""),
    ("geglu", "none", "float[n, 2] a = ai.coreai.gelu (g)  y = Mul (a, u)", GELU),
    (
        "geglu",
        "none",
        "d = Div (g, root)  e = Erf (d)  f = Add (e, one)  p = Mul (g, f)  float[n, 2] a = Mul (p, half)  y = Mul (a, u)",
        "",
    ),
]


@pytest.mark.parametrize(("name", "approximate", "body", "function"), CASES)
def test_an_activation_and_its_product_are_one_node(name, approximate, body, function) -> None:
    attrs = f', approximate = "{approximate}"' if approximate else ""
    fuses(
        HEAD.format(u="n, 2", more="", body=body) + function,
        fuse_gated_activations,
        1,
        f"main (float[n, 2] g, float[n, 2] u) => (float[n, 2] y) {{ y = ai.coreai.{name} <version = 1{attrs}> (g, u) }}",
        FEEDS,
    )


def test_the_other_gelu_has_its_own_body() -> None:
    text = HEAD.format(
        u="n, 2",
        more="",
        body='float[n, 2] a = Gelu <approximate = "tanh"> (g)  y = Mul (a, u)',
    )
    model = parse(text)
    assert run_passes(model, [fuse_gated_activations]).total == 1
    assert [n.op_type for n in model.graph][-1] == "geglu.tanh"
    assert_close(run(model, FEEDS), run(parse(text), FEEDS))


@pytest.mark.parametrize(
    ("shape", "more", "body", "reason"),
    [
        ("1, 2", "", SPELLED, None),
        ("n, 2", ", float[n, 2] a", SPELLED, "something else reads the activation"),
        ("n, 2", "", SPELLED.replace("Mul (g, s)", "Mul (u, s)"), None),
    ],
)
def test_others_stay(shape, more, body, reason) -> None:
    leaves(HEAD.format(u=shape, more=more, body=body), fuse_gated_activations, reason)


class Gated(torch.nn.Module):
    """A gated activation in the ops of torch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if self.kind == "sigmoid":
            return gate * torch.sigmoid(gate) * up
        return getattr(torch.nn.functional, self.kind)(gate) * up


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("kind", "name"), [("silu", "swiglu"), ("sigmoid", "swiglu"), ("gelu", "geglu")]
)
def test_every_dtype_is_one_node(kind: str, name: str, dtype: torch.dtype) -> None:
    """Casts around the ops of bfloat16 hide no pattern."""
    gate, up = torch.linspace(-8, 8, 24, dtype=dtype), torch.linspace(1, 2, 24, dtype=dtype)
    program = coreai_onnx.convert(Gated(kind), (gate, up))
    assert [node.op_type for node in program.model.graph] == [name]
    assert_close(list(program.run(gate, up, kernels=False)), [Gated(kind)(gate, up)])


@pytest.mark.parametrize("wide", ["half", "one", "root"])
def test_constants_of_more_axes_stay(wide: str) -> None:
    """They give the result more axes than the composite."""
    text = """main (float[2] x, float[2] u) => (float y) <float half = {0.5}, float one = {1}, float root = {1.4142135}> {
      d = Div (x, root)  e = Erf (d)  a = Add (e, one)  p = Mul (x, a)  g = Mul (p, half)  y = Mul (g, u)
    }"""
    model = parse(text.replace(f"float {wide} =", f"float[1, 1, 1] {wide} ="))
    model.graph.outputs[0].shape = None
    assert run_passes(model, [fuse_gated_activations]).total == 0
