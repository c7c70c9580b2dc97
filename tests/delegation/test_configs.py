"""Settings: fields that have a meaning, those without effect, and those that are refused."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

from coreai_onnx.delegation import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    FinishConfig,
    FinishedProgram,
    MemoryPlanningPass,
    to_edge,
)
from coreai_onnx.errors import PassError, StagingError
from coreai_onnx.runtime.memory import naive
from tests.support.tolerances import assert_close

X = torch.randn(2, 3)


def test_executorch_s_names_and_fields() -> None:
    assert ExecutorchBackendConfig is FinishConfig
    assert ExecutorchProgramManager is FinishedProgram
    assert EdgeCompileConfig(_check_ir_validity=False).preserve_ops == ()
    config = ExecutorchBackendConfig(
        passes=[],
        memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False),
        emit_stacktrace=False,
        extract_delegate_segments=False,
        segment_alignment=16,
        skip_h2d_for_method_inputs=False,
        delegate_alignment=16,
        remove_view_copy=False,
    )
    finished = to_edge(export(torch.nn.ReLU(), (X,))).to_executorch(config)
    assert_close(finished.run(X)[0], X.relu())


def test_external_constants_are_a_data_file(tmp_path) -> None:
    manager = to_edge(export(torch.nn.Linear(3, 300), (X,)))
    for external, count in ((False, 1), (True, 2)):
        config = FinishConfig(external_constants=external)
        assert len(manager.finish(config).save(tmp_path / "model.onnx")) == count


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"to_out_var_pass": object()}, r"to_out_var_pass has no counterpart: .*\n  leave it out"),
        ({"external_mutable_weights": True}, "external_mutable_weights has no counterpart"),
        ({"external_constants": len}, "external_constants is True or False"),
        ({"skip_h2d_for_method_inputs": True}, "skip_h2d_for_method_inputs has no .*: onnxruntime"),
        ({"skip_d2h_for_method_outputs": {"forward": True}}, "skip_d2h_for_method_outputs has no"),
        ({"memory_planning_pass": object()}, "must be a MemoryPlanningPass"),
        ({"memory_planning_pass": {"forward": 3}}, "must be a MemoryPlanningPass, got 3"),
        ({"memory_planning_pass": MemoryPlanningPass}, "must be a MemoryPlanningPass"),
    ],
)
def test_fields_that_are_refused(fields, fault) -> None:
    with pytest.raises(StagingError, match=fault):
        FinishConfig(**fields)


@pytest.mark.parametrize("ops", [["aten.sin"], torch.ops.aten.sin.default, torch.ops.aten.sin])
def test_operators_to_keep_are_overloads(ops) -> None:
    with pytest.raises(StagingError, match=r"must be a list of operators, .*\n  name overloads"):
        EdgeCompileConfig(preserve_ops=ops)


def test_an_unknown_field_is_an_error_with_its_name() -> None:
    with pytest.raises(TypeError, match="'memory_planning'"):
        FinishConfig(memory_planning=MemoryPlanningPass())


@pytest.mark.parametrize("name", ["run", "run_multimethod", "call", "__call__"])
def test_a_planning_pass_with_a_method_that_is_never_called_is_an_error(name) -> None:
    own = type("Own", (MemoryPlanningPass,), {name: lambda self, graph_module: graph_module})
    with pytest.raises(StagingError, match=rf"Own\.{name} would never be called.*\n.*algo="):
        FinishConfig(memory_planning_pass=own())


def test_memory_planning_by_method() -> None:
    planning = {"first": MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)}
    methods = {name: export(torch.nn.ReLU(), (X,)) for name in ("first", "second")}
    finished = to_edge(methods).finish(FinishConfig(memory_planning_pass=planning))
    assert finished.memory_plan("first", kernels=False).total == 0
    assert finished.memory_plan("second", kernels=False).total == 32 + 24  # aligned to 16 bytes


# ------------------------------------------------------------------------------ memory planning
SQUARE = torch.ones(32, 32)


def peak(planning: MemoryPlanningPass) -> int:
    manager = to_edge(export(torch.nn.Linear(32, 32), (SQUARE,), strict=True))
    finished = manager.to_executorch(FinishConfig(memory_planning_pass=planning))
    plan = finished.memory_plan(kernels=False)
    assert plan.peak == plan.peak_used
    with pytest.raises(StagingError, match="generate"):
        finished.memory_plan("generate")
    return plan.peak


def test_inputs_and_outputs() -> None:
    size = SQUARE.numel() * 4
    assert peak(MemoryPlanningPass()) == 2 * size
    assert peak(MemoryPlanningPass(alloc_graph_input=False)) == size
    assert peak(MemoryPlanningPass(alloc_graph_output=False)) == size
    assert peak(MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)) == 0


def test_a_plan_by_a_function_of_one_s_own() -> None:
    seen = []

    def stacked(buffers, alignment):
        seen.append((len(buffers), alignment))
        return naive(buffers, 2 * alignment)

    module = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
    manager = to_edge(export(module, (SQUARE,)))
    planning = MemoryPlanningPass(stacked, alignment=64)
    plan = manager.finish(FinishConfig(memory_planning_pass=planning)).memory_plan(kernels=False)
    assert seen == [(len(plan.buffers), 64)]
    assert all(buffer.offset % 128 == 0 for buffer in plan.buffers)
    assert plan.total > manager.finish().memory_plan(kernels=False).total


class Counts(torch.nn.Module):
    """Has a state of 128 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum(0))
        return x + self.total


def test_states() -> None:
    manager = to_edge(export(Counts(), (SQUARE,)))

    def plan(planning: MemoryPlanningPass):
        finished = manager.finish(FinishConfig(memory_planning_pass=planning))
        return finished.memory_plan(kernels=False)

    with_states = plan(MemoryPlanningPass())
    without = plan(MemoryPlanningPass(alloc_mutable_buffers=False))
    (state,) = {b.names for b in with_states.buffers} - {b.names for b in without.buffers}
    assert state == ("total",)
    assert with_states.total == without.total + 128
    assert with_states.peak == without.peak + 128


def test_buffers_overlap_only_where_they_are_allowed_to() -> None:
    manager = to_edge(export(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Sigmoid()), (SQUARE,)))

    def total(**fields: bool) -> int:
        planning = MemoryPlanningPass(lambda buffers, _: [0] * len(buffers), **fields)
        finished = manager.finish(FinishConfig(memory_planning_pass=planning))
        return finished.memory_plan(kernels=False).total

    assert total(allow_lifetime_and_storage_overlap=True) == SQUARE.numel() * 4
    with pytest.raises(PassError, match="overlaps"):
        total()


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (
            {"memory_planning_algo": "greedy"},
            r"must be a function, got 'greedy'\n  use coreai_onnx.runtime.memory",
        ),
        ({"alignment": 0}, "alignment must be a positive integer, got 0"),
        ({"alignment": True}, "got True"),
        ({"share_mutable_buffers": True}, r"share_mutable_buffers has no counterpart: each method"),
    ],
)
def test_wrong_fields_of_a_planning_pass_are_errors(fields, fault) -> None:
    with pytest.raises(StagingError, match=fault):
        MemoryPlanningPass(**fields)
