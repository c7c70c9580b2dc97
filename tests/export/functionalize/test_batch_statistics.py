"""Norms in training mode update their running statistics from call to call, as in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from coreai_onnx import convert
from coreai_onnx.export.functionalize.in_place import without_in_place
from tests.support.tolerances import assert_close

pytestmark = [
    pytest.mark.filterwarnings("ignore::coreai_onnx.errors.TrainingModeWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),  # torch's own
]


CASES: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm1d(4),
    "instance": lambda: nn.InstanceNorm1d(4, track_running_stats=True, affine=True),
    "momentum": lambda: nn.InstanceNorm1d(4, track_running_stats=True, momentum=0.3),
    "three": lambda: nn.Sequential(
        nn.BatchNorm1d(4, affine=False), nn.InstanceNorm1d(4), nn.BatchNorm1d(4)
    ),
    "old_weight_norm": lambda: nn.Sequential(
        nn.utils.weight_norm(nn.Conv1d(4, 4, 1)),
        nn.BatchNorm1d(4),
        nn.InstanceNorm1d(4, track_running_stats=True),
    ),
    "old_spectral_norm": lambda: nn.Sequential(
        nn.utils.spectral_norm(nn.Conv1d(4, 4, 1)), nn.BatchNorm1d(4)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_running_statistics_are_states(name: str) -> None:
    model, reference = CASES[name](), CASES[name]()
    reference.load_state_dict(model.state_dict())
    x = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    session = convert(model, (x,)).session(kernels=False)
    for step in range(3):
        outputs = session.run(x + step)
        assert_close(outputs[0], reference(x + step))
        for path, buffer in reference.named_buffers():
            if not path.endswith("num_batches_tracked") or path in outputs.states:
                assert_close(outputs.states[path], buffer, message=path)


def test_statistics_in_a_view_are_written_back() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("both", torch.stack([torch.zeros(4), torch.ones(4)]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean, var = self.both
            return nn.functional.batch_norm(x, mean, var, training=True) + mean

    x = torch.randn(3, 4)
    program = torch.export.export(Model(), (x,))
    plain = without_in_place(program)
    assert plain is not None
    model, made = Model(), plain.module()
    for _ in range(2):
        assert_close(made(x), model(x))
    assert_close(dict(made.named_buffers())["both"], model.both)
