"""Names of outputs: keys where there are keys, positions elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from coreai_onnx.export.capture.io_names import output_names


@dataclass
class Result:
    """Two tensors with names."""

    logits: torch.Tensor
    hidden: torch.Tensor


torch.export.register_dataclass(
    Result, serialized_type_name="tests.export.capture.test_io_names.Result"
)


class Returns(torch.nn.Module):
    """Returns what a function makes of x + 1."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(x + 1)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda y: y, ["output"]),
        (lambda y: (y, y * 2), ["output_0", "output_1"]),
        (lambda y: {"last_hidden_state": y}, ["last_hidden_state"]),
        (lambda y: {"b": y, "a": y * 2}, ["b", "a"]),
        (lambda y: Result(y, y * 2), ["logits", "hidden"]),
        (lambda y: {"kv": [y, y * 2]}, ["kv.0", "kv.1"]),
        (lambda y: (y, {"aux": y * 2}), ["output_0", "output_1.aux"]),
        (lambda y: (y, None, y * 2), ["output_0", "output_2"]),
    ],
)
def test_output_names(make: Callable[[torch.Tensor], Any], expected: list[str]) -> None:
    program = torch.export.export(Returns(make), (torch.ones(2),))
    assert output_names(program, len(expected)) == expected


def test_an_unexpected_count_falls_back_to_positions() -> None:
    program = torch.export.export(Returns(lambda y: {"a": y, "b": y * 2}), (torch.ones(2),))
    assert output_names(program, 3) == ["output_0", "output_1", "output_2"]
