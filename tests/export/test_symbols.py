"""Symbolic sizes bear the names of the user's dims, and their bounds."""

from __future__ import annotations

import sympy
import torch
from torch.export import Dim, ExportedProgram

from coreai_onnx.export.symbols import range_constraints, symbol_names


class Add(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def export(x_dims: object, y_dims: object) -> ExportedProgram:
    shapes = {"x": x_dims, "y": y_dims}
    return torch.export.export(Add(), (torch.ones(2, 3), torch.ones(2, 3)), dynamic_shapes=shapes)


def dims_of(program: ExportedProgram, name: str) -> list[str]:
    """The sizes of a placeholder, as they are written with the user's names."""
    names = symbol_names(program)
    (node,) = [n for n in program.graph.nodes if n.op == "placeholder" and n.name == name]
    shape = node.meta["val"].shape
    return [
        str(s.node.expr.xreplace(names)) if isinstance(s, torch.SymInt) else str(s) for s in shape
    ]


def test_one_dim_of_two_inputs_keeps_its_name_on_both() -> None:
    dims = {0: Dim("batch"), 1: Dim("seq", max=512)}
    program = export(dims, dims)
    assert dims_of(program, "x") == ["batch", "seq"]
    assert dims_of(program, "y") == ["batch", "seq"]


def test_names_outlive_decomposition() -> None:
    dims = {0: Dim("batch"), 1: Dim("seq", max=512)}
    assert dims_of(export(dims, dims).run_decompositions(), "x") == ["batch", "seq"]


def test_a_dim_without_a_name_keeps_its_symbol() -> None:
    program = export({0: Dim.AUTO}, {0: Dim.AUTO})
    assert symbol_names(program) == {}


def test_a_static_program_has_no_names() -> None:
    assert symbol_names(export(None, None)) == {}


def test_bounds_are_those_of_the_dims() -> None:
    dims = {0: Dim("batch", min=2, max=8), 1: Dim("seq", max=512)}
    program = export(dims, dims)
    bounds = range_constraints(program, symbol_names(program))
    assert bounds["batch"] == {"min": 2, "max": 8}
    assert bounds["seq"]["max"] == 512


def test_names_are_sympy_integers() -> None:
    dims = {0: Dim("batch"), 1: Dim("seq")}
    names = symbol_names(export(dims, dims)).values()
    assert {str(n) for n in names} == {"batch", "seq"}
    assert all(isinstance(n, sympy.Symbol) and n.is_integer for n in names)
