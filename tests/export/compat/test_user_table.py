"""Decompositions that the user gives, told from those that torch has."""

from __future__ import annotations

import functools
from typing import Any

import torch

from coreai_onnx import get_decomp_table
from coreai_onnx.export.compat.user_table import table_of_the_user

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
