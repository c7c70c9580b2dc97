"""What torch assumed about sizes, and the lines of the model behind it."""

from __future__ import annotations

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod

from coreai_onnx.export.guards import (
    FixedDim,
    fixed_dims,
    place_of,
    python_text,
    readable,
    shape_env,
)


def test_programs_without_symbols_fix_nothing() -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.randn(3),))
    assert fixed_dims(shape_env(program)) == []
    assert fixed_dims(None) == []
    assert place_of(None) is None


def test_names_as_the_user_writes_them() -> None:
    assert readable("L['x'].size()[0]") == "x.shape[0]"
    assert readable("L['d']['k'][0].size()[1]") == "d['k'][0].shape[1]"


def test_a_fixed_dim_prints_as_a_sentence() -> None:
    assert str(FixedDim("x", 0, "batch", 3)) == "dimension 0 (batch) of input 'x' is fixed at 3"
    assert str(FixedDim("n", None, "", 1, why="by chance")) == (
        "the input 'n' is fixed at 1 by chance"
    )


def test_expressions_print_as_python() -> None:
    rows = sympy.Symbol("rows", integer=True, positive=True)
    assert python_text(sympy.Eq(Mod(3 * rows + 1, 8), 0)) == "((1 + 3*rows) % 8) == 0"
    assert python_text(FloorDiv(rows, 2) >= 4) == "(rows // 2) >= 4"
