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
from coreai_onnx.errors import StagingError
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
