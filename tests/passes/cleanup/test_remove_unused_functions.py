from __future__ import annotations

import numpy as np

from coreai_onnx.passes import ORDER, run_passes
from coreai_onnx.passes.cleanup.remove_unused_functions import remove_unused_functions
from tests.passes.rewriting import leaves, parse, rewrite, same_numbers

HEAD = '<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>\n'
MAIN = HEAD + "main (float[n] x) => (float[n] y) { y = ai.coreai.f (x) }\n"
F = '<domain: "ai.coreai", opset_import: ["": 23, "ai.coreai": 1]> f (x) => (y) { y = ai.coreai.g (x) }\n'
G = '<domain: "ai.coreai", opset_import: ["": 23]> g (x) => (y) { y = Neg (x) }\n'
H = '<domain: "ai.coreai", opset_import: ["": 23]> h (x) => (y) { y = Abs (x) }\n'


def test_what_nothing_calls_goes() -> None:
    rewrite(MAIN + F + G + H, remove_unused_functions, 1, MAIN + F + G)
    same_numbers(MAIN + F + G + H, remove_unused_functions, {"x": np.ones(2, np.float32)})


def test_calls_from_functions_and_subgraphs_count() -> None:
    leaves(MAIN + F + G, remove_unused_functions)
    text = """main (bool c, float[n] x) => (float[n] y) {
      y = If (c) <then_branch = a () => (float[n] t) { t = ai.coreai.h (x) },
                  else_branch = b () => (float[n] e) { e = Abs (x) }>
    }"""
    leaves(HEAD + text + H, remove_unused_functions)


def test_a_call_that_dies_in_a_body_frees_its_function() -> None:
    dead = F.replace("y = ai.coreai.g (x)", "d = ai.coreai.g (x)  y = Neg (x)")
    model = parse(MAIN + dead + G)
    run_passes(model)
    assert [f.name for f in model.functions.values()] == ["f"]
    assert run_passes(model, ORDER).total == 0
