"""Tests of values of the steps of loops: in the model, and in torch."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch._higher_order_ops import while_loop

from coreai_onnx.debugging.reference.step_outputs import add_step_outputs, step_values
from coreai_onnx.debugging.reference.torch_values import own_values
from coreai_onnx.export.functionalize.decompositions import functional
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


class Doubles(torch.nn.Module):
    """Doubles x twice, and adds noise to it."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the shape of x."""
        start = x + torch.rand_like(x) * self.noise if self.noise else x
        i = torch.tensor(0)
        return while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, y * 2), (i, start))[1]


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_steps_of_a_loop(noise: float) -> None:
    x = torch.rand(3)
    program = functional(torch.export.export(Doubles(noise), (x,)))
    found = step_values(program, own_values(program, (x,)).inputs)
    if noise:  # another run has other values
        assert not found
        return
    (steps,) = [one for name, one in found.items() if name.endswith("body_graph_0/mul")]
    assert list(steps) == [(0,), (1,)]
    for (step,), (own, ideal) in steps.items():
        assert_close(own, x * 2 ** (step + 1))
        assert_close(ideal, x.double() * 2 ** (step + 1))


def test_a_program_without_control_flow_is_not_run() -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    assert step_values(program, ()) == {}
