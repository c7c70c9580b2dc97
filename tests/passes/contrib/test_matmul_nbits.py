"""The node of MatMulNBits: its inputs by position, and its sizes."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.passes.contrib.matmul_nbits import Sizes, become_matmul_nbits
from coreai_onnx.passes.engine.edit import Edit


@pytest.mark.parametrize(("tensors", "absent"), [(3, 2), (4, 1)])
def test_the_bias_is_the_sixth_input(tensors: int, absent: int) -> None:
    given = [gs.Variable(f"x{i}", np.float32) for i in range(tensors)]
    bias, y = gs.Variable("b", np.float32), gs.Variable("y", np.float32)
    node = gs.Node("MatMul", inputs=given[:2], outputs=[y])
    edit = Edit(gs.Graph([node], inputs=[*given, bias], outputs=[y]))
    become_matmul_nbits(edit, node, given, bias, Sizes(64, 8, 4, 32), accuracy_level=4)
    assert [tensor.name for tensor in node.inputs] == [
        *(t.name for t in given),
        *[""] * absent,
        "b",
    ]
    assert (node.domain, node.op) == ("com.microsoft", "MatMulNBits")
    assert node.attrs == {"K": 64, "N": 8, "bits": 4, "block_size": 32, "accuracy_level": 4}
    become_matmul_nbits(edit, node, given, None, Sizes(64, 8, 4, 32))
    assert len(node.inputs) == tensors
