"""Parts of calls in the form of onnxruntime's ops: constants, and inputs of functions."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.model.packed_codes import pack_rows
from coreai_onnx.passes import run_passes
from coreai_onnx.passes.contrib.few_bits import packed_zeros
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import parse, run


@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize("groups", [1, 3, 4, 8])
def test_zero_points_of_a_function_are_packed_by_ops(bits: int, groups: int) -> None:
    model = parse(f"main (uint8[5, {groups}] z) => (uint8[5, n] y) {{ y = Identity (z) }}")

    def pack(graph: gs.Graph, _why: Why) -> int:
        (node,) = graph.nodes
        edit = Edit(graph)
        if node.op != "Identity" or node.inputs[0] is not graph.inputs[0]:
            return 0
        edit.become(node, "Identity", [packed_zeros(edit, node, node.inputs[0], bits, "z")])
        edit.finish()
        return 1

    def once(graph: gs.Graph, why: Why) -> int:
        return pack(graph, why) if len(graph.nodes) == 1 else 0

    run_passes(model, [once])
    zeros = np.random.default_rng(0).integers(0, 1 << bits, (5, groups)).astype(np.uint8)
    assert np.array_equal(run(model, {"z": zeros})[0], pack_rows(zeros, bits))
