"""In-place ops are made plain without a retrace, with every view of what they change."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import OutputKind

from coreai_onnx import TorchConverter
from coreai_onnx.export.functionalize.decompositions import functional
from coreai_onnx.export.functionalize.in_place import (
    mutates,
    without_in_place,
    without_in_place_inside,
)
from tests.export.writing import (
    a_view_whose_tensor_is_forgotten,
    chain,
    dropout_returns_its_argument,
    dropped_input,
    einsum_is_a_view,
    filled_and_copied,
    input_itself,
    itself_as_the_result,
    one_of_several_results,
    operators,
    overlapping,
    random_function,
    row_of_an_input,
    row_of_topk,
    seen_through_a_later_view,
    seen_through_earlier_views,
    through_parts,
    through_views,
    training_norm,
    turned_and_written,
    turned_in_place,
    two_views_of_one,
    written_by_index,
)
from tests.support.tolerances import assert_close

aten = torch.ops.aten
Function = Callable[[torch.Tensor], Any]
X = torch.randn(3, 4)


class Call(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def exported(function: Function, x: torch.Tensor = X, **how: Any) -> ExportedProgram:
    return torch.export.export(Call(function), (x,), **how)


def count(program: ExportedProgram) -> int:
    graphs = [
        m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)
    ]
    return sum(mutates(n) for graph in graphs for n in graph.nodes)


def tuple_of(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def check(function: Function, *, x: torch.Tensor = X, **how: Any) -> ExportedProgram:
    """Hold the rebuilt program to eager torch, and the converted one too; mutated x included."""
    program = exported(function, x.clone(), **how)
    given = count(program)
    assert given > 0
    plain = without_in_place(program)
    assert plain is not None
    assert count(plain) == 0
    assert count(program) == given, "the program that was given has changed"
    own, theirs = x.clone(), x.clone()
    expected = tuple_of(function(own))
    actual = tuple_of(plain.module()(theirs))
    for a, e in zip((*actual, theirs), (*expected, own), strict=True):
        assert_close(a, e)
    converted = TorchConverter().add_exported_program(program).to_onnx().optimize()
    outputs = converted.run(x=x, kernels=False)
    mutated = "x_out" in outputs.keys()  # noqa: SIM118 - iteration is over the values
    for a, e in zip(outputs, (*expected, own) if mutated else expected, strict=True):
        assert_close(a, e)
    if not mutated:
        assert_close(own, x)
    return plain


# ------------------------------------------------------------------ one tensor


@pytest.mark.parametrize(
    "function",
    [
        chain,
        row_of_topk,
        written_by_index,
        operators,
        filled_and_copied,
        itself_as_the_result,
        training_norm,
    ],
)
def test_a_tensor_of_ones_own(function: Function) -> None:
    check(function)


@pytest.mark.parametrize("wide", [torch.float64, torch.int64])
def test_a_tensor_keeps_its_dtype(wide: torch.dtype) -> None:
    def add(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y += torch.ones(3, 4, dtype=wide)
        return y * 1

    check(add)


# ------------------------------------------------------------------ views


@pytest.mark.parametrize(
    "function",
    [
        seen_through_a_later_view,
        seen_through_earlier_views,
        through_views,
        through_parts,
        two_views_of_one,
        a_view_whose_tensor_is_forgotten,
        dropout_returns_its_argument,
        einsum_is_a_view,
        turned_in_place,
        one_of_several_results,
    ],
)
def test_views(function: Function) -> None:
    check(function)


def test_sizes_may_be_symbolic() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.view(-1)[x.shape[0] :] += 1
        y[1:, 0] = 5
        return y

    rows = Dim("rows", min=3, max=9)
    program = exported(write, dynamic_shapes=({0: rows},))
    assert without_in_place(program) is not None
    converted = TorchConverter().add_exported_program(program).to_onnx().optimize()
    for size in (3, 7):
        x = torch.randn(size, 4)
        (actual,) = converted.run(x, kernels=False)
        assert_close(actual, write(x))


# ------------------------------------------------------------------ inputs and buffers


@pytest.mark.parametrize("function", [input_itself, row_of_an_input, dropped_input])
def test_an_input_that_changes_is_an_output(function: Function) -> None:
    plain = check(function)
    kinds = [spec.kind for spec in plain.graph_signature.output_specs]
    assert kinds == [OutputKind.USER_INPUT_MUTATION, OutputKind.USER_OUTPUT]


class States(torch.nn.Module):
    """Buffers that change, one that does not, and an input that does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("still", torch.ones(4))
        self.register_buffer("last", torch.zeros(4))
        self.register_buffer("cache", torch.zeros(5, 4))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        self.cache[1:3] = x
        self.cache.index_copy_(0, self.steps[None], self.still[None])
        self.steps.add_(1)
        self.last.copy_(x)
        return self.cache.sum(0) + self.last + total


def test_buffers_that_change_are_outputs_as_torch_has_them() -> None:
    program = torch.export.export(States(), (torch.ones(4), torch.ones(4)))
    plain = without_in_place(program)
    assert plain is not None
    with torch.no_grad():
        theirs = program.run_decompositions({}).graph_signature
    ours = plain.graph_signature
    kinds = [(s.kind, s.target) for s in ours.output_specs]
    assert kinds == [(s.kind, s.target) for s in theirs.output_specs]
    assert list(ours.buffers_to_mutate.values()) == ["last", "cache", "steps"]
    module, session = States(), TorchConverter().add_exported_program(program).to_onnx().session()
    total = torch.ones(4)
    for _ in range(3):
        x = torch.randn(4)
        outputs = session.run(x, total)
        assert_close(outputs[0], module(x, total))
        assert_close(outputs["total_out"], total)
        for name in ("last", "cache", "steps"):
            assert_close(outputs.states[name], getattr(module, name))


def test_branches_may_change_what_they_make() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[0] += 1
        return y

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, branch, lambda x: x - 1, (x,))

    program = exported(function)
    plain = functional(program)
    assert count(plain) == 0
    converted = TorchConverter().add_exported_program(program).to_onnx()
    for x in (X.abs(), -X.abs()):
        assert_close(converted.run(x, kernels=False)[0], function(x))


# ------------------------------------------------------------------ random programs


class Random(torch.nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.register_buffer("cache", torch.arange(12.0).reshape(4, 3))
        self.function = random_function(seed)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.function(x, self.cache)


@pytest.mark.parametrize("seed", range(24))
def test_random_views_and_writes(seed: int) -> None:
    module = Random(seed)
    program = torch.export.export(copy.deepcopy(module), (X,))
    plain = without_in_place(program)
    assert plain is not None
    assert count(plain) == 0
    runs = plain.module()
    for _ in range(2):
        _equal(runs(X), module(X))


def _equal(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e)


# ------------------------------------------------------------------ what is left to torch


@pytest.mark.parametrize("function", [overlapping, turned_and_written])
def test_what_takes_a_retrace_is_left_to_torch(function: Function) -> None:
    program = exported(function)
    assert without_in_place(program) is None
    (actual,) = TorchConverter().add_exported_program(program).to_onnx().run(x=X)
    assert_close(actual, function(X))


def test_a_loaded_program_is_left_to_torch(tmp_path: Any) -> None:
    """Its fake tensors share no memory, so that nothing says which are views of which."""
    torch.export.save(exported(through_views), tmp_path / "p.pt2")
    loaded = torch.export.load(tmp_path / "p.pt2")
    assert without_in_place(loaded) is None
    (actual,) = TorchConverter().add_exported_program(loaded).to_onnx().run(x=X)
    assert_close(actual, through_views(X))


def test_traced_graphs_are_rebuilt_too() -> None:
    traced = torch.fx.experimental.proxy_tensor.make_fx(through_views, tracing_mode="fake")(X)
    assert any(map(mutates, traced.graph.nodes))
    plain = without_in_place_inside(traced)
    assert plain is not None
    assert not any(map(mutates, plain.graph.nodes))
    assert_close(plain(X), through_views(X))
    changes = torch.fx.experimental.proxy_tensor.make_fx(input_itself, tracing_mode="fake")(X)
    assert without_in_place_inside(changes) is None


@pytest.mark.parametrize("norm", [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # torch's own
def test_weights_that_a_hook_computes_before_an_instance_norm(norm: Any) -> None:
    """The norm has no running statistics to change; the weight is an attribute that torch sets."""
    model = torch.nn.Sequential(norm(torch.nn.Conv2d(3, 4, 3)), torch.nn.InstanceNorm2d(4)).eval()
    x = torch.randn(1, 3, 8, 8)
    program = TorchConverter().add_pytorch_module(
        model, export_fn=lambda module: torch.export.export(module, (x,))
    )
    assert_close(program.to_onnx().run(x)[0], model(x))
