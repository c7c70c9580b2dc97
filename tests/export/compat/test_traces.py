"""Assignments to ``tensor.data``, which torch.export drops, and transforms of failed traces."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coreai_onnx import compare, convert
from coreai_onnx.errors import ExportError, ExternalizationError
from tests.export.sizes import line_of

X = torch.linspace(-1, 2, 8).reshape(2, 4)


class Assigns(torch.nn.Module):
    """Assigns to the data of a buffer, a parameter or a value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))
        self.weight = torch.nn.Parameter(torch.ones(4))


class ToABuffer(Assigns):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.data = self.count + 1
        return x + self.count


class ToAParameter(Assigns):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = x.mean(0)
        return x * self.weight


class ToAValue(Assigns):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.data = x + 5
        return y


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ToABuffer, "self.count.data = self.count + 1"),
        (ToAParameter, "self.weight.data = x.mean(0)"),
        (ToAValue, "y.data = x + 5"),
    ],
)
def test_an_assignment_is_refused_with_its_line(kind: Any, code: str) -> None:
    with pytest.raises(ExportError, match=r"tensor\.detach\(\)\.copy_\(values\)") as raised:
        convert(kind(), (X,))
    assert f"at {line_of(kind, code)}" in str(raised.value)


def test_an_assignment_in_an_externalized_module_is_refused() -> None:
    with pytest.raises((ExportError, ExternalizationError), match=r"assignments to tensor\.data"):
        convert(torch.nn.Sequential(ToAValue()), (X,), externalize_modules=[ToAValue])


class InPlace(Assigns):
    """Writes in place, as the error advises and by ``add_``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.detach().copy_(self.count + 1)
        y = x * 2
        y.detach().copy_(x + 5)
        y.data.add_(self.count)
        return y


def test_writes_in_place_are_exported() -> None:
    compare(convert(InPlace(), (X,)), InPlace(), (X,)).assert_close()


def test_assignments_outside_an_export_work() -> None:
    x = torch.zeros(2)
    x.data = torch.ones(2)
    assert x.sum() == 2
