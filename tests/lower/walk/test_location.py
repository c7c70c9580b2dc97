"""Places in the user's model."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites import RMSNorm
from coreai_onnx.lower.walk.location import _clean_path, where_of


class Leaf(torch.nn.Module):
    """One op."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class Tree(torch.nn.Module):
    """A module in a list in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.rooms = torch.nn.ModuleDict({"hall": torch.nn.ModuleList([Leaf()])})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rooms["hall"][0](x) + 1


@pytest.mark.parametrize("strict", [False, True])
def test_module_class_source_and_line(strict: bool) -> None:
    program = torch.export.export(Tree(), (torch.ones(2),), strict=strict)
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    sine, total = (where_of(n) for n in calls)
    assert (sine.module, sine.module_class) == ("rooms.hall.0", "Leaf")
    assert (total.module, total.module_class) == ("", "Tree")
    assert sine.source.startswith("tests/lower/walk/test_location.py:")
    assert sine.code == "return x.sin()"


class Normed(torch.nn.Module):
    """A module of this package, called by a line of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = RMSNorm(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def test_a_line_of_this_package_is_not_the_users() -> None:
    program = torch.export.export(Normed(), (torch.ones(2, 2),))
    for node in (n for n in program.graph.nodes if n.op == "call_function"):
        assert where_of(node).code == "return self.norm(x)"
    program = torch.export.export(RMSNorm(2), (torch.ones(2, 2),))
    node = next(n for n in program.graph.nodes if n.op == "call_function")
    assert where_of(node).source.startswith("coreai_onnx/composites/")  # the model itself


@pytest.mark.parametrize(
    ("path", "clean"),
    [
        ("L['self'].layers['0'].mlp", "layers.0.mlp"),
        ("L__self___layers.0.mlp@1", "_layers.0.mlp"),
        ("layers.0.mlp", "layers.0.mlp"),
        ("", ""),
    ],
)
def test_paths_as_the_user_writes_them(path: str, clean: str) -> None:
    assert _clean_path(path) in (clean, clean.lstrip("_"))
