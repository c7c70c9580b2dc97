"""Names and ranges of symbolic sizes."""

from __future__ import annotations

import torch
from torch.export import Dim

from coreai_onnx.export.capture.symbols import range_constraints, symbol_names


class Add(torch.nn.Module):
    """x + y."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def program(dims: object) -> torch.export.ExportedProgram:
    args = (torch.randn(3, 4), torch.randn(3, 4))
    return torch.export.export(Add(), args, dynamic_shapes=dims)


def test_a_symbol_has_the_users_name() -> None:
    batch, seq = Dim("batch", max=8), Dim("seq", min=2)
    exported = program({"x": {0: batch, 1: seq}, "y": {0: batch, 1: seq}})
    names = symbol_names(exported)
    assert sorted(str(s) for s in names.values()) == ["batch", "seq"]
    assert all(s.is_integer for s in names.values())
    ranges = range_constraints(exported, names)
    assert ranges["batch"]["max"] == 8
    assert "max" not in ranges["seq"]
    assert ranges["seq"]["min"] == 2


def test_static_programs_have_none() -> None:
    assert symbol_names(program(None)) == {}
    assert range_constraints(program(None), {}) == {}


def test_automatic_dims_are_named_after_input_and_axis() -> None:
    exported = program(({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO, 1: Dim.AUTO}))
    names = symbol_names(exported)
    assert {str(s) for s in names.values()} == {"x_dim_0", "x_dim_1"}  # y has the same sizes


def test_torchs_habit_of_excluding_1_is_no_bound() -> None:
    """torch takes sizes for neither 0 nor 1 where the user says nothing; 1 is as good as 2."""
    exported = program(({0: Dim.AUTO, 1: Dim.AUTO(min=3, max=9)},) * 2)
    assert range_constraints(exported, symbol_names(exported)) == {"x_dim_1": {"min": 3, "max": 9}}


def test_a_dim_that_only_occurs_in_a_derived_one_has_its_name() -> None:
    seq = Dim("seq", min=2, max=9)
    exported = program(({1: 2 * seq}, {1: 2 * seq}))
    names = symbol_names(exported)
    assert [str(s) for s in names.values()] == ["seq"]
    bounds = {"seq": {"min": 2, "max": 9}, "2*seq": {"min": 4, "max": 18}}
    assert range_constraints(exported, names) == bounds
