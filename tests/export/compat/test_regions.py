"""Functions marked with `torch.compiler.nested_compile_region`."""

from __future__ import annotations

import inspect

import torch
from torch.compiler import nested_compile_region

from coreai_onnx.export.compat.regions import (
    is_region,
    regions_called_by,
    regions_called_once_kept,
    regions_run,
    unmarked,
)


def plain(x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
    return x * scale


marked = nested_compile_region(plain)


class Once(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return marked(x)

    @nested_compile_region
    def part(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def targets(*, strict: bool) -> list[str]:
    program = torch.export.export(Once(), (torch.ones(2),), strict=strict)
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_a_function_without_its_mark() -> None:
    assert is_region(marked)
    assert not is_region(plain)
    assert unmarked(nested_compile_region(marked)) is plain
    assert unmarked(plain) is plain


def test_a_method_without_its_mark_is_bound() -> None:
    model = Once()
    part = unmarked(model.part)
    assert list(inspect.signature(part).parameters) == ["x"]
    assert not is_region(part)
    assert part(torch.ones(1)) == 2


def test_a_region_called_once_is_kept() -> None:
    assert targets(strict=True) == ["aten.mul.Tensor"]  # what torch does
    with regions_called_once_kept():
        assert targets(strict=True)[0] == "invoke_subgraph"
    assert targets(strict=True) == ["aten.mul.Tensor"]


def test_calls_without_strict_are_passed_on() -> None:
    with regions_called_by(lambda _, args, kwargs: args[0] - len(kwargs)):
        assert targets(strict=False) == ["aten.sub.Tensor"]
    assert targets(strict=False) == ["aten.mul.Tensor"]


def test_marked_functions_run_while_torch_exports() -> None:
    with regions_run():
        assert targets(strict=False) == ["aten.mul.Tensor"]
        assert marked(torch.ones(1), scale=3.0) == 3
