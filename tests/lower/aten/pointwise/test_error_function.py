"""The error function and its relatives against torch."""

from __future__ import annotations

import pytest
import torch
from torch import special

from tests.lower.checking import check

INF, NAN = float("inf"), float("nan")
EDGES = [0.0, -0.0, 1.0, -1.0, 8.0, -8.0, 1e-10, 30.0, -30.0, 100.0, INF, -INF, NAN]
FUNCTIONS = {
    "erf": torch.erf,
    "erfc": torch.erfc,
    "erfcx": special.erfcx,
    "ndtr": special.ndtr,
    "log_ndtr": special.log_ndtr,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, dtype):
    grid = torch.linspace(-9, 30, 200, dtype=torch.float64)
    if name == "erfcx" and dtype == torch.float32:  # torch's own error grows with exp(x²)
        grid = grid.clamp(min=-4)
    x = torch.cat([grid, torch.tensor(EDGES, dtype=torch.float64)])
    check(FUNCTIONS[name], x.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow(dtype):
    check(lambda x: (torch.erf(x), torch.erfc(x)), torch.linspace(-4, 4, 50).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_inverses(dtype):
    y = torch.linspace(-1, 1, 201, dtype=torch.float64)
    ends = torch.tensor([1e-15, -1e-6, 1 - 1e-6, 1.5, NAN], dtype=torch.float64)
    check(torch.erfinv, torch.cat([y, ends]).to(dtype))
    tiny = torch.tensor([1e-300, 1e-20, 1 - 1e-6, 1.5, -0.5, NAN], dtype=torch.float64)
    check(special.ndtri, torch.cat([(y + 1) / 2, tiny]).to(dtype))


def test_the_tail_keeps_its_digits():
    x = torch.linspace(1, 26, 50, dtype=torch.float64)
    check(lambda x: torch.erfc(x) * torch.exp(x * x), x)
    check(lambda x: torch.special.erfcx(x) * x, torch.tensor([1e3, 1e7, 1e20], dtype=torch.float64))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_integers_and_empty(name):
    check(FUNCTIONS[name], torch.tensor([-2, 0, 1]))
    check(FUNCTIONS[name], torch.tensor([True, False]))
    check(FUNCTIONS[name], torch.empty(0, 2))


def test_dynamic_and_decomposed():
    batch = torch.export.Dim("batch")
    for decompose in (False, True):
        check(
            lambda x: (torch.erfc(x), torch.erfinv(x), special.ndtri(x), special.log_ndtr(x)),
            torch.rand(3, 2),
            dynamic_shapes=({0: batch},),
            others=[(torch.rand(5, 2),)],
            decompose=decompose,
        )
