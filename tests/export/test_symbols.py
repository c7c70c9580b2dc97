"""Names and ranges of symbolic sizes."""

from __future__ import annotations

import torch
from torch.export import Dim

from coreai_onnx.export.symbols import range_constraints, symbol_names


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


def test_automatic_dims_keep_the_symbols_name() -> None:
    exported = program(({0: Dim.AUTO}, {0: Dim.AUTO}))
    names = symbol_names(exported)
    assert all(str(s).isidentifier() for s in names.values())
