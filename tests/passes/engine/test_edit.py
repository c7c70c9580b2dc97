"""Edits of graphs, and what passes build from them."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from coreai_onnx import passes
from coreai_onnx.passes import close_model, open_model
from coreai_onnx.passes.analysis.attention_bodies import become_heads, side_by_side
from coreai_onnx.passes.engine.edit import Edit, rewrites, set_input
from coreai_onnx.passes.engine.integrity import check, interface_of
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import parse, rewrite, shown

TEXT = "main (float[2] x) => (float[2] y) { a = Neg (x)  b = Abs (a)  y = Exp (b) }"


def opened(text: str) -> tuple[gs.Graph, dict[str, gs.Tensor]]:
    graph = open_model(parse(text))
    return graph, graph.tensors()


def closed(graph: gs.Graph, text: str) -> str:
    check(graph, interface_of(graph))
    model = parse(text)
    close_model(graph, model)
    return shown(model)


def test_replace_moves_every_reader() -> None:
    graph, t = opened(
        "main (float[2] x) => (float[2] y) { a = Neg (x)  b = Abs (x)  y = Add (b, b) }"
    )
    edit = Edit(graph)
    assert edit.replace(t["b"], t["a"])
    edit.remove(graph.nodes[1])
    edit.finish()
    expected = "main (float[2] x) => (float[2] y) { a = Neg (x)  y = Add (a, a) }"
    assert closed(graph, TEXT) == shown(parse(expected))
    assert t["b"].outputs == []
    assert len(t["a"].outputs) == 2


def test_replace_of_an_output_renames_its_new_producer() -> None:
    graph, t = opened("main (float[2] x) => (float[2] y) { a = Neg (x)  c = Exp (a)  y = Abs (a) }")
    edit = Edit(graph)
    assert edit.can_replace(t["y"], t["a"])
    assert edit.bypass(graph.nodes[2], t["a"])
    edit.finish()
    expected = "main (float[2] x) => (float[2] y) { y = Neg (x)  c = Exp (y) }"
    assert closed(graph, TEXT) == shown(parse(expected))


def test_an_output_cannot_become_an_input() -> None:
    graph, t = opened(TEXT)
    edit = Edit(graph)
    assert not edit.can_replace(t["y"], t["x"])
    assert not edit.bypass(graph.nodes[2], t["x"])
    assert not edit.is_removed(graph.nodes[2])


def test_what_was_known_of_a_type_is_kept() -> None:
    graph, t = opened(
        "main (float[2] x) => (float[2] y) <float[n, 3] b> { a = Neg (x)  b = Abs (x)  y = Exp (b) }"
    )
    Edit(graph).replace(t["b"], t["a"])
    assert (t["a"].dtype, t["a"].shape) == (np.float32, ["n", 3])


def test_fix_turns_a_variable_into_a_constant() -> None:
    graph, t = opened(TEXT)
    edit = Edit(graph)
    edit.fix(t["a"], np.array([1, 2], np.float32))
    edit.remove(graph.nodes[0])
    edit.finish()
    expected = (
        "main (float[2] x) => (float[2] y) <float[2] a = {1, 2}> { b = Abs (a)  y = Exp (b) }"
    )
    assert closed(graph, TEXT) == shown(parse(expected))


def test_new_nodes_and_constants_have_free_names() -> None:
    graph, t = opened(TEXT)
    edit = Edit(graph)
    constant = edit.constant("a", np.array([2], np.float32))
    node = edit.node("Mul", graph.nodes[1], [t["a"], constant])
    set_input(graph.nodes[1], 0, node.outputs[0])
    edit.finish()
    expected = """main (float[2] x) => (float[2] y) <float[1] a_1 = {2}>
    { a = Neg (x)  b_mul = Mul (a, a_1)  b = Abs (b_mul)  y = Exp (b) }"""
    assert closed(graph, TEXT) == shown(parse(expected))
    assert node.origin is graph.nodes[2].origin


def test_become_keeps_name_and_results() -> None:
    graph, t = opened(TEXT)
    name = graph.nodes[2].name
    Edit(graph).become(graph.nodes[2], "Elu", [t["b"]], alpha=0.5)
    expected = (
        "main (float[2] x) => (float[2] y) { a = Neg (x)  b = Abs (a)  y = Elu <alpha = 0.5> (b) }"
    )
    assert closed(graph, TEXT) == shown(parse(expected))
    assert graph.nodes[2].name == name


def test_thousands_of_readers_take_linear_time() -> None:
    body = "  ".join(f"v{i} = Add (c, x)" for i in range(4000))
    graph, t = opened(
        f"main (float[2] x) => (float[2] y) {{ c = Neg (x)  d = Neg (x)  {body}  y = Abs (c) }}"
    )
    start = time.perf_counter()
    edit = Edit(graph)
    edit.replace(t["c"], t["d"])
    for node in graph.nodes[2:-1]:
        edit.remove(node)
    edit.finish()
    assert len(graph.nodes) == 3
    assert len(t["d"].outputs) == 1
    assert time.perf_counter() - start < 2  # quadratic: half a minute


def test_every_pass_finishes_its_edit() -> None:
    (folder,) = map(Path, passes.__path__)
    made = {p.stem: p.read_text() for p in folder.rglob("*.py") if "Edit(graph)" in p.read_text()}
    assert len(made) > 3
    assert [name for name, text in made.items() if not re.search(r"edit\.finish\(\)", text)] == []


NOOPS = """main (float[n] x, float[n] w) => (float[n] y, float[n] z) {
  a = Add (x, w)  b = Neg (a)  c = ai.coreai.Add (b, w)  d = Add (c, x)  y = Abs (d)  z = Add (x, w) }"""


def test_rewrites_of_nodes_make_a_pass() -> None:
    @rewrites("Add")
    def remove_sums(edit: Edit, node: gs.Node, why: Why, index: int) -> bool:
        """Remove sums."""
        edit.once(list[str]).append(node.outputs[0].name)
        removed.append(edit.once(list[str]))
        return edit.bypass_or(why, node, node.inputs[index])

    removed: list[list[str]] = []
    graph, why = open_model(parse(NOOPS)), Why()
    assert remove_sums(graph, why, 1) == 2
    assert [(n.op, [t.name for t in n.inputs]) for n in graph.nodes] == [
        ("Neg", ["w"]), ("Add", ["b", "w"]), ("Abs", ["x"]), ("Add", ["x", "w"]),
    ]  # fmt: skip
    assert [(m.reason, m.count) for m in why.misses] == [("it names a graph output", 1)]
    assert removed == [["a", "d", "z"]] * 3
    assert (remove_sums.__name__, remove_sums.__doc__) == ("remove_sums", "Remove sums.")


@pytest.mark.parametrize(
    ("ops", "composites", "names"),
    [
        ((), (), "NAAAAA"),
        (("Neg",), (), "N"),
        ((), ("Add",), "A"),
        (("Neg", "Abs"), ("Add",), "NAA"),
    ],
)
def test_rewrites_of_named_operators(
    ops: tuple[str, ...], composites: tuple[str, ...], names: str
) -> None:
    @rewrites(*ops, composites=composites)
    def count(_edit: Edit, node: gs.Node, why: Why) -> int:
        why(node.op, node)
        return 2

    graph, why = open_model(parse(NOOPS)), Why()
    assert count(graph, why) == 2 * len(names)
    seen = Counter({miss.reason[0]: 0 for miss in why.misses})
    for miss in why.misses:
        seen[miss.reason[0]] += miss.count
    assert seen == Counter(names)


HEADS = "main (float16[b, 2, s, 3] x) => (float16[b, 2, s, 3] y)"


def row_and_back(graph: gs.Graph, why: Why) -> int:
    edit, (node, *others) = Edit(graph), graph.nodes
    if others:
        return 0
    row = side_by_side(edit, graph.inputs[0], node)
    assert (row.dtype, row.shape) == ("float16", ["b", "s", 6])
    become_heads(edit, node, row, 2)
    apart = node.inputs[0]
    assert (apart.dtype, apart.shape) == ("float16", ["b", "s", 2, 3])
    edit.finish()
    return 1


def test_heads_go_side_by_side_and_apart_again() -> None:
    expected = """
      <int64[3] x_row = {0, 0, 6}, int64[4] y_reshape_heads = {0, 0, 2, 3}> {
      y_transpose = Transpose <perm = [0, 2, 1, 3]> (x)
      y_reshape = Reshape (y_transpose, x_row)
      y_reshape_1 = Reshape (y_reshape, y_reshape_heads)
      y = Transpose <perm = [0, 2, 1, 3]> (y_reshape_1) }"""
    rewrite(HEADS + "{ y = Neg (x) }", row_and_back, 1, HEADS + expected)
