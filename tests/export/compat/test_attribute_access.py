"""Tests of attribute reads and tables of decompositions that are the user's, during an export."""

from __future__ import annotations

import functools
from typing import Any

import torch

from coreai_onnx import get_decomp_table
from coreai_onnx.export.compat.attribute_access import access_reported, table_of_the_user

Seen = list[tuple[str, str]]


class Owner(torch.nn.Module):
    """Has an attribute, reads it, and looks into its own ``__dict__``."""

    size = 3

    def __init__(self) -> None:
        super().__init__()
        self.index = 1

    def forward(self) -> Any:
        return self.index, self.__dict__["index"], self.size


def noted(read: Any) -> Seen:
    seen: Seen = []

    def report(module: torch.nn.Module, own: dict[str, Any], name: str) -> None:
        assert own is object.__getattribute__(module, "__dict__")
        seen.append((type(module).__name__, name))

    with access_reported(report, lambda: None):
        read()
    return seen


def test_reads_are_noted_with_their_module() -> None:
    owner = Owner()
    assert noted(owner.forward) == [
        ("Owner", "index"),
        ("Owner", "__dict__"),
        ("Owner", "size"),
    ]
    assert "__getattribute__" not in vars(torch.nn.Module)


def test_torch_itself_may_look_into_dict() -> None:
    owner = Owner()
    assert ("Owner", "__dict__") not in noted(lambda: list(owner.named_modules()))


def test_what_is_missing_is_missing_all_the_same() -> None:
    owner = Owner()
    assert noted(lambda: getattr(owner, "nothing", None)) == [("Owner", "nothing")]


aten = torch.ops.aten


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Return twice the tensor: no rule of torch's."""
    return x + x


def exported(table: Any = None) -> torch.export.ExportedProgram:
    program = torch.export.export(torch.nn.ReLU(), (torch.randn(3),))
    return program.run_decompositions(table)


def test_only_rules_of_the_users_own_are_kept() -> None:
    rule = functools.partial(doubled)
    with table_of_the_user() as found:
        exported()
        assert not found
        exported(get_decomp_table() | {aten.relu.default: rule})
    assert found == {aten.relu.default: rule}


def test_the_program_is_decomposed_as_it_would_be() -> None:
    table = {aten.relu.default: doubled}
    with table_of_the_user():
        inside = exported(table)
    targets = [[str(n.target) for n in p.graph.nodes] for p in (inside, exported(table))]
    assert targets[0] == targets[1]
    assert "aten.add.Tensor" in targets[0]
