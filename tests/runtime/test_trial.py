"""Tests of runs that may crash: in a process of their own, between guard pages."""

from __future__ import annotations

import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.runtime.trial import (
    Edge,
    Trial,
    TrialRun,
    guarded_input,
    guarded_output,
    run_trial,
)
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
    inputs = [np.array([1.5], np.float32), np.array([2.5], ml_dtypes.bfloat16)]
    runs = [run_of(index, x) for index, x in enumerate(inputs)]
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


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (40, 1000)])
@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.int64, ml_dtypes.bfloat16])
def test_an_input_is_a_copy_and_an_output_is_not_zero(
    edge: Edge, shape: tuple[int, ...], dtype: type
) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    copy = guarded_input(array, edge)
    assert_close(copy, array)
    assert copy.dtype == array.dtype
    output = guarded_output(shape, array.dtype, edge)
    assert (output.shape, output.dtype) == (shape, array.dtype)
    assert output.view(np.uint8).all() if output.ndim else output != 0
    output[...] = array
    assert_close(output, array)


SCRIPT = """
import ctypes, sys
import numpy as np
from coreai_onnx.runtime.trial import guarded_input, guarded_output
x = guarded_{what}(np.ones(3, np.float32), "{edge}") if "{what}" == "input" else guarded_output(
    (3,), np.dtype(np.float32), "{edge}")
place = ctypes.c_float.from_address(x.ctypes.data + {offset})
{access}
"""


@pytest.mark.parametrize(
    ("what", "edge", "offset", "access", "ends"),
    [
        ("output", "end", 8, "place.value = 1", False),
        ("output", "end", 12, "place.value = 1", True),
        ("output", "end", 4096 * 8, "place.value = 1", True),
        ("output", "start", 0, "place.value = 1", False),
        ("output", "start", -4, "place.value = 1", True),
        ("input", "end", 8, "place.value", False),
        ("input", "end", 12, "place.value", True),
        ("input", "start", -4, "place.value", True),
        ("input", "start", 0, "place.value = 1", True),
    ],
)
def test_access_outside_ends_the_process(
    what: str, edge: Edge, offset: int, access: str, ends: bool
) -> None:
    script = SCRIPT.format(what=what, edge=edge, offset=offset, access=access)
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    code = -signal.SIGSEGV if sys.platform == "linux" else -signal.SIGBUS
    assert done.returncode == (code if ends else 0), done.stderr.decode()
