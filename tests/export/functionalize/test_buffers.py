"""Externalized modules that change their buffers: state of the model, through every function."""

from __future__ import annotations

import copy
from typing import Any

import onnx
import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx import ExternalizeSpec
from coreai_onnx.errors import DroppedStateWarning, ExternalizationError
from coreai_onnx.program import OnnxProgram
from tests.support.externalized import calls, functions, kernels_built, untouched
from tests.support.tolerances import assert_close

Tensor = torch.Tensor


class Total(torch.nn.Module):
    """Adds up what it is given; a second buffer is only read."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("unit", torch.full((3,), 2.0))
        self.register_buffer("total", torch.full((3,), start))

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x * self.unit)
        return self.total * 2


class Replaced(Total):
    """As Total, but a new tensor takes the buffer's place."""

    def forward(self, x: Tensor) -> Tensor:
        self.total = self.total + x * self.unit
        return self.total * 2


class Sliced(Total):
    """As Total, but writes through a view."""

    def forward(self, x: Tensor) -> Tensor:
        self.total[:2].add_((x * self.unit)[:2])
        self.total[2:] += (x * self.unit)[2:]
        return self.total * 2


class Inside(torch.nn.Module):
    """Holds one that counts, and counts as well."""

    def __init__(self, kind: type = Total) -> None:
        super().__init__()
        self.first, self.second = kind(1.0), kind(5.0)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.second(self.first(x)) + self.calls


def steps(
    model: torch.nn.Module, specs: list[Any], x: Tensor, dims: Any = None, **options: Any
) -> OnnxProgram:
    """Convert, and run three steps next to torch, with and without kernels."""
    model = model.eval()
    before = {name: dict(m.__dict__) for name, m in model.named_modules()}
    numbers = copy.deepcopy(model.state_dict())
    program = coreai_onnx.convert(
        model, (x,), dynamic_shapes=dims, externalize_modules=specs, **options
    )
    untouched(model, before)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, numbers[name]), name
    onnx.checker.check_model(program.to_proto(), full_check=True)
    for kernels in (False, True) if kernels_built() else (False,):
        eager = copy.deepcopy(model)
        session = coreai_onnx.session(program, kernels=kernels)
        for step in range(3):
            (actual,) = session.run(x + step)
            with torch.no_grad():
                assert_close(actual, eager(x + step), message=f"step {step}, kernels={kernels}")
    return program


@pytest.mark.parametrize("kind", [Total, Replaced, Sliced])
def test_a_changed_buffer_is_a_state_of_the_model(kind: type) -> None:
    program = steps(torch.nn.Sequential(kind(4.0)), [kind], torch.randn(3))
    (function,) = program.model.functions.values()
    assert [v.name for v in function.inputs] == ["input", "unit", "total"] or [
        v.name for v in function.inputs
    ] == ["x", "unit", "total"]
    assert [v.name for v in function.outputs] == ["output", "total_out"]
    assert coreai_onnx.session(program, kernels=False).states == ("0.total",)


def test_states_of_several_instances_are_apart() -> None:
    model = torch.nn.Sequential(Total(1.0), Total(2.0), Total(3.0))
    program = steps(model, [Total], torch.randn(3))
    assert functions(program) == ["ai.coreai.module::Total"]
    assert len(calls(program, "Total")) == 3


def test_a_shared_instance_sees_what_its_first_call_wrote() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = Total()

        def forward(self, x: Tensor) -> Tensor:
            return self.total(self.total(x) + 1)

    program = steps(Twice(), [Total], torch.randn(3))
    first, second = calls(program, "Total")
    assert first.outputs[1] is second.inputs[2]


@pytest.mark.parametrize("specs", [[Inside], [Total], [Inside, Total]])
def test_nested_states(specs: list[Any]) -> None:
    program = steps(torch.nn.Sequential(Inside(), Inside()), specs, torch.randn(3))
    assert len(functions(program)) == len(specs)
    assert len(coreai_onnx.session(program, kernels=False).states) == 6


def test_the_caller_writes_what_the_module_reads() -> None:
    class Reader(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.table

    class Writer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reader = Reader()

        def forward(self, x: Tensor) -> Tensor:
            self.reader.table.mul_(0.5).add_(x)
            return self.reader(x)

    steps(Writer(), [Reader], torch.randn(3))


def test_running_statistics() -> None:
    class Training(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Conv1d(2, 4, 3), torch.nn.BatchNorm1d(4))

        def train(self, mode: bool = True) -> Any:
            return self  # stays in training

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    x = torch.randn(2, 2, 7)
    program = steps(Training(), [torch.nn.BatchNorm1d], x)
    (function,) = program.model.functions.values()
    assert {v.name for v in function.outputs} == {
        "output",
        "running_mean_out",
        "running_var_out",
        "num_batches_tracked_out",
    }


class Cache(torch.nn.Module):
    """Attention over what it has seen, kept in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(1, 2, 6, 4), persistent=False)
        self.register_buffer("values", torch.zeros(1, 2, 6, 4), persistent=False)
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (6, 4)).transpose(1, 2).chunk(3, dim=1)
        self.keys.index_copy_(2, self.position, k)
        self.values.index_copy_(2, self.position, v)
        seen = torch.arange(6) <= self.position
        self.position += 1
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q, self.keys, self.values, seen[None, None, None]
        )
        return x + mixed.transpose(1, 2).flatten(-2)


def test_key_value_caches_in_layers() -> None:
    model = torch.nn.Sequential(Cache(), Cache(), torch.nn.Linear(8, 8))
    program = steps(model, [Cache], torch.randn(1, 1, 8))
    assert "ai.coreai.module::Cache" in functions(program)
    assert len(calls(program, "Cache")) == 2
    assert len(coreai_onnx.session(program, kernels=False).states) == 6


def test_a_composite_of_the_users_may_have_state() -> None:
    model = torch.nn.Sequential(Total(), Total())
    program = steps(model, [ExternalizeSpec(Total, "total")], torch.randn(3))
    assert program.composites() == {"ai.coreai.user::total": 2}


def test_a_standard_name_with_state_stays_the_users() -> None:
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return torch.nn.functional.rms_norm(x, (3,), self.weight, 1e-5)

    with pytest.warns(UserWarning, match="is not the composite rms_norm: it changes calls in pla"):
        program = steps(
            torch.nn.Sequential(Norm()), [ExternalizeSpec(Norm, "rms_norm")], torch.randn(2, 3)
        )
    assert program.composites()["ai.coreai.user::rms_norm"] == 1


def test_dynamic_shapes_and_the_whole_model_as_one_function() -> None:
    class Sums(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(x.sum(0))
            return x + self.total

    program = steps(Sums(), [Sums], torch.randn(4, 3), {"x": {0: Dim("rows")}})
    assert [n.op_type for n in program.model.graph] == ["Sums"]


def test_a_buffer_that_grows_is_refused() -> None:
    class Grows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1, 3))

        def forward(self, x: Tensor) -> Tensor:
            self.seen = torch.cat([self.seen, x])
            return self.seen.sum(0)

    model = torch.nn.Sequential(Grows())
    before = {name: dict(m.__dict__) for name, m in model.named_modules()}
    with pytest.raises(
        ExternalizationError, match=r"changes the shape or dtype of its buffer .*seen"
    ):
        coreai_onnx.convert(model, (torch.ones(1, 3),), externalize_modules=[Grows])
    untouched(model, before)


def test_an_argument_that_is_changed_is_refused_with_advice() -> None:
    class Writes(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.add_(1)

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.writes = Writes()

        def forward(self, x: Tensor) -> Tensor:
            return self.writes(x * 2)

    with pytest.raises(ExternalizationError, match="module writes changes its argument"):
        coreai_onnx.convert(Outer(), (torch.ones(3),), externalize_modules=[Writes])


def test_what_is_assigned_to_a_buffer_is_kept_without_externalization() -> None:
    program = steps(torch.nn.Sequential(Replaced(4.0)), [], torch.randn(3))
    assert coreai_onnx.session(program, kernels=False).states == ("0.total",)


class Grid(torch.nn.Module):
    """Computes a table anew where the input has another size, as ConViT of timm does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table.shape[1] != x.shape[1]:
            self.table = torch.arange(float(x.shape[1]))[None]
        return x + self.table


def test_a_buffer_that_becomes_another_shape_is_computed_in_each_call() -> None:
    module, x = torch.nn.Sequential(Grid()), torch.randn(2, 4)
    with pytest.warns(DroppedStateWarning, match="(?s)in 0.table, and .* a tensor of one shape"):
        program = coreai_onnx.convert(module, (x,))
    session = coreai_onnx.session(program, kernels=False)
    assert session.states == ()
    assert_close(module[0].table, torch.zeros(1, 1))
    for _ in range(2):
        assert_close(session.run(x)[0], x + torch.arange(4.0))
