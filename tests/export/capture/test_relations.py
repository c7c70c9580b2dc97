"""Conditions on sizes that a program keeps for its sessions."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch.export import Dim

from coreai_onnx.export.capture.relations import relations
from coreai_onnx.export.capture.symbols import symbol_names
from coreai_onnx.export.compat.source_lines import user_lines
from tests.export.sizes import line_of


def found(module: torch.nn.Module, sizes: dict[str, Any], **how: Any) -> dict[str, str]:
    """Export with inputs of these sizes, every dim of its own; conditions and their lines."""
    args = {n: torch.randn(s) if isinstance(s, int) else s for n, s in sizes.items()}
    shapes = {n: {0: how.pop(n, Dim.AUTO)} for n in args}
    with user_lines():
        program = torch.export.export(module, (), args, dynamic_shapes=shapes, **how)
    return {r.holds: r.source for r in relations(program, symbol_names(program))}


class Pairs(torch.nn.Module):
    """Rows of two, a product of sizes, and a branch on a size."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        if b.shape[0] // 3 == 4:
            c = c + 1
        return a.view(-1, 2), torch.outer(a, b).view(-1) + c


def source(module: type, code: str) -> str:
    return line_of(module, code).partition("   ")[0]


def test_divisibility_and_branches_of_the_model_are_kept() -> None:
    """The product a*b == c is the dim of c; that sizes are not 0 or 1 is torch's habit."""
    view = "return a.view(-1, 2), torch.outer(a, b).view(-1) + c"
    assert found(Pairs(), {"a": 4, "b": 3, "c": 12}) == {
        "(b_dim_0 // 3) != 4": source(Pairs, "if b.shape[0] // 3 == 4:"),
        "(a_dim_0 % 2) == 0": source(Pairs, view),
    }


class Checks(torch.nn.Module):
    """Checks on sizes, and on a number that is computed."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        torch._check(x.shape[0] <= 10)
        torch._check(x.shape[0] % 4 == 0)
        torch._check(x.shape[0] * 2 >= y.shape[0])
        count = y.long().sum().item()
        torch._check(count > 2)
        return x.view(-1, 4), torch.ones(count)


def test_checks_are_kept_and_those_on_data_are_not() -> None:
    """``x.shape[0] <= 10`` is a bound of one size, and stands with the bounds."""
    sizes = {"x": 8, "y": torch.ones(3)}
    assert found(Checks(), sizes) == {
        "(x_dim_0 % 4) == 0": source(Checks, "torch._check(x.shape[0] % 4 == 0)"),
        "2*x_dim_0 >= y_dim_0": source(Checks, "torch._check(x.shape[0] * 2 >= y.shape[0])"),
    }


def test_checks_that_torch_defers_to_the_program() -> None:
    sizes = {"x": 8, "y": torch.ones(3)}
    kept = found(Checks(), sizes, prefer_deferred_runtime_asserts_over_guards=True)
    assert set(kept) == {"(x_dim_0 % 4) == 0", "y_dim_0 <= 2*x_dim_0"}


def test_a_loaded_program_keeps_what_it_checks() -> None:
    args = (torch.randn(8), torch.ones(3))
    program = torch.export.export(
        Checks(),
        args,
        dynamic_shapes=({0: Dim.AUTO}, {0: Dim.AUTO}),
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    kept = relations(loaded, symbol_names(loaded))
    assert [r.holds for r in kept] == ["(x_dim_0 % 4) == 0", "y_dim_0 <= 2*x_dim_0"]


def test_names_are_the_users() -> None:
    class Rows(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            torch._check(b.shape[0] * 3 == a.shape[0] * 2)
            return a.sum() + b.sum()

    kept = found(Rows(), {"a": 6, "b": 4})
    assert list(kept) == ["(3*b_dim_0) == (2*a_dim_0)"]


def test_static_programs_have_none() -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.randn(3),))
    assert relations(program, {}) == []
