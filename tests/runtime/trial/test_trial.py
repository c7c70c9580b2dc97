"""Runs in another process: results, errors, crashes and time limits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.runtime.trial.trial import Trial, TrialRun, run_trial
from tests.support import my_ops
from tests.support.tolerances import assert_close

pytestmark = pytest.mark.slow


def model(op_type: str, dtype: ir.DataType) -> bytes:
    """Return a model of one node of the library."""
    x = ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape(["n"]))
    attributes = {"factor": 2.0} if op_type == "Scale" else {"to": int(ir.DataType.FLOAT)}
    domain = "my.ops" if op_type == "Scale" else ""
    node = ir.node(op_type, [x], attributes, domain=domain, num_outputs=1)
    node.outputs[0].name = "y"
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    node.outputs[0].shape = ir.Shape(["n"])
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 23, "my.ops": 1}, name="g")
    return to_proto(ir.Model(graph, ir_version=10)).SerializeToString()


def run_of(index: int, x: np.ndarray, *, shape: tuple[int, ...] | None = None) -> TrialRun:
    """Return a run whose output is float32 of the input's shape."""
    return TrialRun(index, (x,), ((x.shape if shape is None else shape, np.dtype(np.float32)),))


def test_runs_of_several_models() -> None:
    models = [model("Scale", ir.DataType.FLOAT), model("Cast", ir.DataType.BFLOAT16)]
    given = [np.array([1.5], np.float32), np.array([2.5], ml_dtypes.bfloat16)]
    runs = [run_of(index, x) for index, x in enumerate(given)]
    result = run_trial(Trial(my_ops.library(), models, runs), timeout=60)
    assert result.failure == ""
    assert [found.run for found in result.outputs] == [0, 1], "equal outputs are reported once"
    assert_close(result.outputs[0].arrays[0], np.array([3.0], np.float32))
    assert_close(result.outputs[1].arrays[0], np.array([2.5], np.float32))


def test_the_runs_before_a_failure_are_kept() -> None:
    runs = [run_of(0, np.ones(n, np.float32)) for n in (1, 2)]
    runs.append(run_of(0, np.ones((1, 1), np.float32)))
    trial = Trial(my_ops.library(), [model("Scale", ir.DataType.FLOAT)], runs)
    result = run_trial(trial, timeout=60)
    assert len(result.outputs) == 2
    assert "rank" in result.failure
    assert result.failed is not None
    assert result.failed.runs == (2,)
    assert "did not finish" in run_trial(trial, timeout=0.01).failure


def test_outputs_of_another_shape_are_returned() -> None:
    trial = Trial(
        my_ops.library(),
        [model("Scale", ir.DataType.FLOAT)],
        [run_of(0, np.ones(3, np.float32), shape=(4,))],
    )
    result = run_trial(trial, timeout=60)
    assert result.failure == ""
    assert result.outputs[0].arrays[0].shape == (3,)
