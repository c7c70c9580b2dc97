from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.bodies import append_body, outline
from coreai_onnx.passes.engine.surgeon import open_model
from tests.passes.rewriting import parse

MAIN = "main (float[n] x) => (float[n] y) { y = Neg (x) }"
HEAD = '\n<domain: "ai.coreai", opset_import: ["": 23]>\n'
FIRST = "first <axes: ints = [-1]> (a, b) => (m) { m = Add (a, b) }"
SECOND = """second <axes: ints = [0], eps: float = 1.0> (x, m) => (y) {
  e = Constant <value_float: float = @eps> ()  c = Constant <value = float {3.0}> ()
  p = Mul (x, c)  q = Clip (p, , m)  y = Add (q, e)
}"""
BOTH = """both <axes: ints = [-1], eps: float = 1.0> (a, b, w) => (y, m) {
  m = Add (a, b)  e = Constant <value_float: float = @eps> ()  c = Constant <value = float {3.0}> ()
  p = Mul (m, c)  q = Clip (p, , w)  y = Add (q, e)
}"""
BRANCH = """branch (x, c) => (y) {
  y = If (c) <then_branch = g () => (float[n] t) { t = Neg (x) }, else_branch = h () => (float[n] f) { f = Exp (x) }>
}"""


def functions(*texts: str) -> list[gs.Function]:
    return list(open_model(parse(MAIN + "".join(HEAD + text for text in texts))).functions)


def test_the_second_body_reads_the_result_of_the_first() -> None:
    first, second, both = functions(FIRST, SECOND, BOTH)
    before = outline(second)
    assert append_body(first, second)
    assert outline(first) == outline(both)
    assert outline(second) == before
    assert dict(first.attrs) == {"axes": [-1], "eps": 1.0}
    names = [t.name for t in first.tensors().values()] + [t.name for t in first.inputs]
    assert len({*names}) == len({*map(id, first.tensors().values())})


def test_a_body_with_branches_is_not_appended() -> None:
    first, branch = functions(FIRST, BRANCH)
    before = outline(first)
    assert not append_body(first, branch)
    assert outline(first) == before
