"""torch's values in the graphs of control flow."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import while_loop

from coreai_onnx.debugging.reference.step_values import step_values
from coreai_onnx.debugging.reference.true_values import own_values
from coreai_onnx.export.functionalize.decompositions import functional
from tests.support.tolerances import assert_close


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
    found = step_values(program, own_values(program, (x,), {}).inputs)
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
