from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.head_layout import become_heads, side_by_side
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import rewrite

HEAD = "main (float16[b, 2, s, 3] x) => (float16[b, 2, s, 3] y)"


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
    rewrite(HEAD + "{ y = Neg (x) }", row_and_back, 1, HEAD + expected)
