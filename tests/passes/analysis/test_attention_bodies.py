"""Which body an attention gets; test_bodies.py holds them to torch."""

from __future__ import annotations

import pytest

from coreai_onnx.passes.analysis.attention_bodies import NAME, attention_without_mask
from coreai_onnx.passes.engine.bodies import Bodies
from coreai_onnx.passes.engine.surgeon import open_model
from tests.passes.rewriting import parse

FUNCTION = '\n<domain: "ai.coreai", opset_import: ["": 23]>\n'
MASKED = f"{FUNCTION}{NAME} (query, key, value, mask) => (output) {{ output = Attention (query, key, value, mask) }}"
PLAIN = (
    f"{FUNCTION}{NAME} (query, key, value) => (output) {{ output = Attention (query, key, value) }}"
)
CAUSAL = PLAIN.replace("= Attention", "= Attention <is_causal = 1>")
OTHER = PLAIN.replace("= Attention", "= Attention <softcap = 2.0>")


def provided(functions: str, *, causal: bool) -> tuple[str | None, set[str]]:
    graph = open_model(parse("main (float[n] x) => (float[n] y) { y = Neg (x) }" + functions))
    name = attention_without_mask(Bodies(graph), "mask", causal=causal)
    return name, {function.name for function in graph.functions}


@pytest.mark.parametrize(
    ("functions", "causal", "name", "there"),
    [
        ("", False, NAME, {NAME}),
        ("", True, NAME, {NAME}),
        (MASKED, True, NAME, {NAME, f"{NAME}.mask"}),
        (PLAIN, True, f"{NAME}.causal", {NAME, f"{NAME}.causal"}),
        (PLAIN, False, NAME, {NAME}),
        (CAUSAL, True, NAME, {NAME}),
        (CAUSAL, False, None, {NAME}),
        (OTHER, False, None, {NAME}),
        (
            MASKED + MASKED.replace(f"\n{NAME}", "\nother"),
            False,
            NAME,
            {NAME, f"{NAME}.mask", "other"},
        ),
    ],
)
def test_the_name_is_that_of_an_equal_body_or_free(functions, causal, name, there) -> None:
    assert provided(functions, causal=causal) == (name, there)
