"""Tests of removes what no result needs: nodes, functions, and Concat of one input."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes import ORDER, open_model
from coreai_onnx.passes.cleanup.remove_unused import (
    remove_dead_code,
    remove_single_inputs,
    remove_unused_functions,
)
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import leaves, parse, rewrite, run_passes, same_numbers

TEXT = """main (float[n] x, float[n] unused) => (float[n] y) <float[1] w = {1}, float[1] v = {2}>
{ a = Exp (x)  b = Add (a, w)  y = Add (x, v) }"""


def test_what_nothing_reads_goes_and_inputs_stay() -> None:
    expected = (
        "main (float[n] x, float[n] unused) => (float[n] y) <float[1] v = {2}> { y = Add (x, v) }"
    )
    rewrite(TEXT, remove_dead_code, 3, expected)
    feeds = {"x": np.ones(2, np.float32), "unused": np.ones(2, np.float32)}
    same_numbers(TEXT, remove_dead_code, feeds)


def test_what_a_subgraph_reads_stays() -> None:
    leaves(
        """main (bool c, float[n] x) => (float[n] y) <float[1] w = {1}> {
          h = Neg (x)
          y = If (c) <then_branch = a () => (float[n] t) { t = Add (h, w) },
                      else_branch = b () => (float[n] e) { e = Abs (x) }>
        }""",
        remove_dead_code,
    )


def test_a_dead_node_takes_its_subgraphs_and_what_they_read_along() -> None:
    rewrite(
        """main (bool c, float[n] x) => (float[n] y) <float[1] w = {1}> {
          h = Neg (x)
          z = If (c) <then_branch = a () => (float[n] t) { t = Add (h, w) },
                      else_branch = b () => (float[n] e) { e = Abs (x) }>
          y = Abs (x)
        }""",
        remove_dead_code,
        3,
        "main (bool c, float[n] x) => (float[n] y) { y = Abs (x) }",
    )


def test_inside_subgraphs_and_functions() -> None:
    rewrite(
        """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
        main (bool c, float[n] x) => (float[n] y) {
          y = If (c) <then_branch = a () => (float[n] t) { d = Neg (x)  t = ai.coreai.f (x) },
                      else_branch = b () => (float[n] e) { e = Abs (x) }>
        }
        <domain: "ai.coreai", opset_import: ["": 23]>
        f (x) => (y) { k = Constant <value = float {1}> ()  d = Exp (x)  y = Neg (x) }""",
        remove_dead_code,
        3,
        """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
        main (bool c, float[n] x) => (float[n] y) {
          y = If (c) <then_branch = a () => (float[n] t) { t = ai.coreai.f (x) },
                      else_branch = b () => (float[n] e) { e = Abs (x) }>
        }
        <domain: "ai.coreai", opset_import: ["": 23]>
        f (x) => (y) { y = Neg (x) }""",
    )


def test_a_node_with_one_live_output_stays() -> None:
    leaves(
        "main (float[4] x) => (float[2] b) { a, b = Split <num_outputs = 2> (x) }", remove_dead_code
    )


def test_a_default_of_an_input_stays() -> None:
    graph = open_model(parse("main (float[1] x, float[1] s = {1}) => (float[1] y) { y = Neg (x) }"))
    assert remove_dead_code(graph, Why()) == 0
    assert [t.name for t in graph.inputs] == ["x", "s"]


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


@pytest.mark.parametrize(
    "op", ["Concat <axis = 0>", "Sum", "Mean", "Max", "Min", "Split <num_outputs = 1>"]
)
def test_one_input_is_the_result(op) -> None:
    text = f"main (float[4] x) => (float[4] z) {{ y = {op} (x)  z = Neg (y) }}"
    rewrite(text, remove_single_inputs, 1, "main (float[4] x) => (float[4] z) { z = Neg (x) }")
    same_numbers(text, remove_single_inputs, {"x": np.ones(4, np.float32)})


def test_two_inputs_stay() -> None:
    leaves(
        "main (float[n] x) => (float[m] z) { z = Concat <axis = 0> (x, x) }", remove_single_inputs
    )


def test_an_output_of_an_input_stays() -> None:
    leaves(
        "main (float[n] x) => (float[n] z) { z = Sum (x) }",
        remove_single_inputs,
        "it names a graph output",
    )
