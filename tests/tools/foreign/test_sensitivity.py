"""How far results move after a change in the last place."""

from __future__ import annotations

import torch

from tools.foreign.sensitivity import sensitivity


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * self.scale
        return y, (y * ids).round()


def _moved(x: torch.Tensor) -> list[float]:
    module, arguments = Scaled(), {"x": x, "ids": torch.tensor([1, 1, 1])}
    expected = [y.detach() for y in module(**arguments)]
    found = sensitivity(module, arguments, expected)
    assert torch.equal(module.scale, torch.ones(()))
    return found


def test_a_smooth_result_moves_by_roundings_and_a_step_by_a_whole_one() -> None:
    smooth, steps = _moved(torch.tensor([0.25, 1.0, 2.5]))
    assert 0 < smooth < 1e-6
    assert steps == 1


def test_values_far_from_a_half_do_not_move_to_the_next_integer() -> None:
    assert _moved(torch.tensor([0.25, 1.0, 2.25]))[1] == 0


def test_it_is_the_same_each_time() -> None:
    x = torch.tensor([0.1, 0.7, 1.5])
    assert _moved(x) == _moved(x)
