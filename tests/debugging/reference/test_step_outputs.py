"""Values in the graphs of nodes as outputs of a model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from coreai_onnx.debugging.reference.step_outputs import add_step_outputs
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Outputs
from tests.support.small_models import parse
from tests.support.tolerances import assert_close

LOOP = """
<ir_version: 10, opset_import: ["" : 21]>
m (float[2] x, int64 n, bool flag) => (float[2] y) {
    y, all = Loop (n, , x) <body = b (int64 i, bool go, float[2] c)
                                => (bool go_, float[2] d, float[2] s) {
        go_ = Identity (go)
        d = Add (c, c)
        s = If (flag) <
            then_branch = t () => (float[2] p) { q = Sin (d) p = Neg (q) },
            else_branch = e () => (float[2] r) { r = Cos (d) }
        >
    }>
}
"""


def run(text: str, names: set[str], **inputs: object) -> tuple[Outputs, dict[str, str]]:
    model: ir.Model = parse(text)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name in names:  # the parser knows the types of inputs and outputs only
                value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([2])
    found = add_step_outputs(model.graph, names)
    model.graph.outputs.extend(one.outer for one in found)
    where = {one.inner.name or "": one.outer.name or "" for one in found}
    return Session(model, kernels=False).run(**inputs), where


def test_each_step_of_a_loop_and_of_branches_in_it() -> None:
    x = np.array([1, 2], np.float32)
    outputs, where = run(LOOP, {"d", "q", "r"}, x=x, n=np.int64(3), flag=np.bool_(True))
    doubled = np.stack([x * 2, x * 4, x * 8])
    assert np.array_equal(outputs["y"], x * 8)
    assert np.array_equal(outputs[where["d"]], doubled)
    assert_close(outputs[where["q"]], np.sin(doubled))
    assert not outputs[where["r"]].any()


def test_a_loop_without_iterations() -> None:
    x = np.array([1, 2], np.float32)
    outputs, where = run(LOOP, {"d", "q"}, x=x, n=np.int64(0), flag=np.bool_(True))
    assert outputs[where["d"]].shape == outputs[where["q"]].shape == (0, 2)
