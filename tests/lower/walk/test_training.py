"""Warnings about random numbers, and about modules in training mode."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx import TorchConverter, convert
from coreai_onnx.errors import ConversionError, RandomnessWarning, TrainingModeWarning
from tests.export.sizes import line_of

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
nn = torch.nn
X = torch.randn(2, 4, 4)


class Draws(nn.Module):
    """Has other weights in every call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, torch.randn(5, 4))


class Drops(nn.Module):
    """Drops in ``eval()`` as well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x)


class Attends(nn.Module):
    """Attention with dropout."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, dropout_p=self.rate)


def noted(module: Any) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exported = torch.export.export(module, (X,))
        converter = TorchConverter().add_exported_program(exported)
        with contextlib.suppress(ConversionError):  # not all are supported; the warning is first
            converter.to_onnx()
    kinds = (RandomnessWarning, TrainingModeWarning)
    return [warning for warning in caught if issubclass(warning.category, kinds)]


def test_a_model_that_draws_random_numbers() -> None:
    with pytest.warns(RandomnessWarning, match="aten.randn.default") as caught:
        convert(Draws(), X)
    line = line_of(Draws, "return F.linear(x, torch.randn(5, 4))")
    assert line in str(caught[0].message)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "module",
    [
        nn.Dropout(),
        nn.AlphaDropout(),
        nn.BatchNorm1d(4),
        nn.InstanceNorm1d(4, track_running_stats=True),
        nn.RReLU(),
        nn.LSTM(4, 4, 2, dropout=0.1),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4)),
        Drops().eval(),
        Attends(0.1),
    ],
    ids=lambda module: type(module).__name__,
)
def test_a_module_in_training_mode(module: nn.Module) -> None:
    (warning,) = noted(module)
    assert warning.category is TrainingModeWarning
    assert "call model.eval()" in str(warning.message)


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(4, 4),
        nn.Dropout(0),
        nn.Dropout().eval(),
        nn.BatchNorm1d(4).eval(),
        nn.BatchNorm1d(4, track_running_stats=False).eval(),
        nn.InstanceNorm1d(4).eval(),
        nn.LayerNorm(4),
        nn.RReLU().eval(),
        nn.LSTM(4, 4, 2, dropout=0.1).eval(),
        Attends(0.0),
    ],
    ids=lambda module: type(module).__name__,
)
def test_nothing_to_warn_about(module: nn.Module) -> None:
    assert noted(module) == []


def test_bodies_of_externalized_modules_count() -> None:
    model = nn.Sequential(Draws(), nn.Linear(5, 4))
    with pytest.warns(RandomnessWarning, match="aten.randn.default"):
        convert(model, X, externalize_modules=[Draws])


def test_many_places_are_one_warning() -> None:
    (warning,) = noted(nn.Sequential(*(nn.Dropout() for _ in range(7))))
    assert "… and 2 more" in str(warning.message)
