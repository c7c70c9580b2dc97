from __future__ import annotations

import numpy as np

from coreai_onnx.passes import open_model
from coreai_onnx.passes.cleanup.remove_dead_code import remove_dead_code
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import leaves, parse, rewrite, same_numbers

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
