"""Regions of `torch.compiler.nested_compile_region` become functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.compiler import nested_compile_region
from torch.export import Dim

from coreai_onnx import OnnxProgram, TorchConverter, convert
from tests.support.tolerances import assert_close

X = torch.randn(2, 8)
BATCH = ({0: Dim("batch")},)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    @nested_compile_region
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + torch.tanh(self.linear(x)), x.shape[0] * x.sum()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])

    def forward(self, x: torch.Tensor) -> Any:
        total = torch.zeros(())
        for block in self.blocks:
            x, part = block(x)
            total = total + part
        return x, total


@nested_compile_region
def wave(x: torch.Tensor) -> torch.Tensor:
    return _inner(x) + 1


def _inner(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


class Waves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return wave(wave(x))


def exported(
    model: nn.Module, *inputs: torch.Tensor, shapes: Any = None
) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model.eval(), inputs, strict=True, dynamic_shapes=shapes)


def agrees(program: OnnxProgram, model: nn.Module, *inputs: torch.Tensor) -> None:
    """The program agrees with torch, as it is and optimized."""
    expected = model(*inputs)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    assert_close(list(program.run(*inputs, kernels=False)), expected)
    optimized = OnnxProgram({"main": program.model.clone()}).optimize()
    assert_close(list(optimized.run(*inputs, kernels=False)), expected)


def functions(program: OnnxProgram) -> dict[str, Sequence[str]]:
    """Return the names of the functions with the names of their inputs."""
    return {f.name: [v.name for v in f.inputs] for f in program.model.functions.values()}


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("shapes", [None, BATCH])
def test_equal_layers_are_one_function(shapes: Any, decomposed: bool) -> None:
    model = Blocks()
    program = exported(model, X, shapes=shapes)
    program = program.run_decompositions() if decomposed else program
    converted = TorchConverter().add_exported_program(program).to_onnx()
    assert converted.composites() == {"ai.coreai.module::Block": 3}
    assert functions(converted) == {"Block": ["arg0", "linear.weight", "linear.bias"]}
    for x in (X, torch.randn(5, 8)) if shapes else (X,):
        agrees(converted, model, x)


@pytest.mark.parametrize("strict", [False, True])
def test_convert_externalizes_marked_modules(strict: bool) -> None:
    model = Blocks().eval()
    program = convert(model, (X,), dynamic_shapes=BATCH, strict=strict)
    assert program.composites() == {"ai.coreai.module::Block": 3}
    assert functions(program) == {"Block": ["x", "linear.weight", "linear.bias"]}
    for x in (X, torch.randn(5, 8)):
        agrees(program, model, x)
    assert_close(list(model(X)), list(Blocks.forward(model, X)))  # restored


@pytest.mark.parametrize("strict", [False, True])
def test_a_function_gives_its_name(strict: bool) -> None:
    model = Waves()
    program = convert(model, (X,), dynamic_shapes=BATCH, strict=strict)
    assert program.composites() == {"ai.coreai.module::wave": 2}
    agrees(program, model, torch.randn(3, 8))


class Differing(nn.Module):
    """Regions of one class with other bodies, and a region in a region."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Scaled(2.0), Scaled(3.0), Scaled(2.0)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    @nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return wave(x) * self.factor


@pytest.mark.parametrize("strict", [False, True])
def test_other_bodies_are_other_functions_and_regions_nest(strict: bool) -> None:
    model = Differing().eval()
    program = convert(model, (X,), strict=strict, optimize=False)
    assert list(functions(program)) == ["wave", "Scaled", "Scaled.2"]
    assert [n.op_type for n in program.model.graph] == ["Scaled", "Scaled.2", "Scaled"]
    agrees(program, model, X)


class Sized(nn.Module):
    """A region that takes and returns sizes, and an integer tensor."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> Any:
        return rows(x, ids, x.shape[0] + 1)


@nested_compile_region
def rows(x: torch.Tensor, ids: torch.Tensor, count: int) -> Any:
    return x[ids] * count, ids + count


@pytest.mark.parametrize("strict", [False, True])
def test_sizes_are_passed(strict: bool) -> None:
    model, ids = Sized(), torch.tensor([1, 0, 1])
    shapes = ({0: Dim("batch")}, {0: Dim("ids")})
    program = convert(model, (X, ids), dynamic_shapes=shapes, strict=strict)
    assert list(functions(program)) == ["rows"]
    agrees(program, model, X, ids)
    agrees(program, model, torch.randn(4, 8), torch.tensor([3, 2]))


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, wave, lambda y: wave(y) - 1, (x,))


@pytest.mark.parametrize("strict", [False, True])
def test_a_region_in_a_branch_is_a_function(strict: bool) -> None:
    model = Branch()
    program = convert(model, (X,), strict=strict, optimize=False)
    # Without strict, the trace of a branch has no frames of the user's functions.
    assert list(functions(program)) == ["wave" if strict else "region"]
    for x in (X.abs(), -X.abs()):
        agrees(program, model, x)


class Method(nn.Module):
    """A region that is a method with weights, and writes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.half(self.half(x, scale=2.0), scale=0.5)

    @nested_compile_region
    def half(self, x: torch.Tensor, *, scale: float) -> torch.Tensor:
        self.total.add_(x.sum(0))
        return self.linear(x).relu() * scale


def test_a_method_with_weights_and_state() -> None:
    model = Method().eval()
    program = convert(model, (X,), optimize=False)
    names = ["x", "a.linear.weight", "a.linear.bias", "a.total"]
    assert functions(program) == {"half": names, "half.2": names}
    assert [v.name for v in program.model.graph.inputs] == ["total", "x"]
    agrees(program, model, X)


def test_a_closure_is_inlined() -> None:
    factor = torch.tensor(3.0)

    @nested_compile_region
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    class Closure(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scaled(scaled(x))

    program = convert(Closure(), (X,))
    assert functions(program) == {}
    agrees(program, Closure(), X)
