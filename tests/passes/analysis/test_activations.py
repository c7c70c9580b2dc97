from __future__ import annotations

import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.passes.analysis.activations import activation_of
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import parse, run_passes

TEXT = "main ({dtype}[n] x) => ({dtype}[n] y) <float root = {{1.4142135}}, float one = {{1}}, float half = {{0.5}}> {{ {body} }}"


def kind(body: str, dtype: str = "float") -> str | None:
    """Return the kind of the activation that the last node of a graph computes of x."""
    found: list[str | None] = []

    def look(graph: gs.Graph, why: Why) -> int:
        activation = activation_of(graph.outputs[0])
        found.append(None if activation is None else activation.kind)
        assert activation is None or activation.input.name == "x"
        return 0

    run_passes(parse(TEXT.format(body=body, dtype=dtype)), [look])
    return found[0]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = Gelu (x)", "gelu"),
        ('y = Gelu <approximate = "tanh"> (x)', "gelu_tanh"),
        ("s = Sigmoid (x) y = Mul (s, x)", "silu"),
        ("d = Div (x, root) e = Erf (d) f = Add (e, one) p = Mul (x, f) y = Mul (p, half)", "gelu"),
        ("d = Div (x, one) e = Erf (d) f = Add (e, one) p = Mul (x, f) y = Mul (p, half)", None),
        ("s = Sigmoid (x) t = Neg (x) y = Mul (s, t)", None),
        ("y = Neg (x)", None),
    ],
)
def test_kinds(body: str, wanted: str | None) -> None:
    assert kind(body) == wanted


def test_a_composite_is_one() -> None:
    silu = """
<domain: "ai.coreai", opset_import: ["": 23]>
silu (input) => (output) { s = Sigmoid (input)  output = Mul (input, s) }"""
    text = TEXT.format(body="y = ai.coreai.silu (x)", dtype="float") + silu
    kinds: list[str | None] = []

    def look(graph: gs.Graph, why: Why) -> int:
        activation = activation_of(graph.outputs[0])
        kinds.append(None if activation is None else activation.kind)
        return 0

    run_passes(parse(text), [look])
    assert "silu" in kinds


def test_casts_of_bfloat16_hide_none() -> None:
    body = """float[n] a = Cast <to = 1> (x) float[n] s = Sigmoid (a) bfloat16[n] t = Cast <to = 16> (s)
      float[n] b = Cast <to = 1> (t) float[n] p = Mul (a, b) y = Cast <to = 16> (p)"""
    assert kind(body, "bfloat16") == "silu"
