"""Sessions in the onnxruntime of another Python."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch

import coreai_onnx
from coreai_onnx.debugging.comparing.other_runtime import OtherRuntime
from coreai_onnx.errors import InputError, SessionError
from coreai_onnx.program import OnnxProgram
from tests.debugging.reference.test_watched_values import Counter
from tests.support.small_models import linear_model
from tests.support.tolerances import assert_close


class Mixed(torch.nn.Module):
    """Results of several types."""

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return a number of each type."""
        half = x.to(torch.bfloat16)
        return half * 2, x.to(torch.float8_e4m3fn), z * 2, x > 0, x.sum(), half[:0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results_of_every_type_are_those_of_a_session(dtype: torch.dtype) -> None:
    x, z = torch.randn(3, 2).to(dtype), torch.randn(3, dtype=torch.complex64)
    program = coreai_onnx.convert(Mixed(), (x, z))
    other = OtherRuntime(program, sys.executable)
    assert other.name == f"onnxruntime {ort.__version__}"
    expected = coreai_onnx.session(program, kernels=False).run(x, z)
    found = other.run(x, z)
    assert found.keys() == expected.keys()
    for one, wanted in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (wanted.dtype, wanted.shape)
        assert np.array_equal(one, wanted)


def test_states_are_carried_and_a_file_is_run_where_it_is(tmp_path: Path) -> None:
    x = torch.randn(4)
    coreai_onnx.convert(Counter(), (x,)).save(tmp_path / "m.onnx", external_data=True)
    other = OtherRuntime(tmp_path / "m.onnx", sys.executable)
    for count in (2, 3, 4):
        outputs = other.run(x)
        assert_close(outputs[0], (x * count).sin())
        assert_close(outputs.states["count"], np.array([count], np.float32))


def test_a_wrong_input() -> None:
    other = OtherRuntime(linear_model(), sys.executable)
    with pytest.raises(InputError, match="unexpected input 'z'"):
        other.run(z=torch.ones(1))
    with pytest.raises(SessionError, match=r"onnxruntime \S+ cannot run the model: .*rank"):
        other.run(torch.ones(3))


def test_a_python_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="cannot start the Python"):
        OtherRuntime(linear_model(), tmp_path / "python")


def test_a_python_without_onnxruntime(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    with pytest.raises(SessionError, match=r"No module named '\w+'\n  give a Python with numpy"):
        OtherRuntime(linear_model(), tmp_path / "bare" / "bin" / "python")


def test_a_model_that_the_other_version_cannot_load(tmp_path: Path) -> None:
    program = OnnxProgram({"main": linear_model()})
    program.save(tmp_path / "m.onnx")
    other = OtherRuntime(tmp_path / "m.onnx", sys.executable)
    (tmp_path / "m.onnx").write_bytes(b"broken")
    with pytest.raises(SessionError, match=r"onnxruntime \S+ cannot run the model: .*m\.onnx"):
        other.run(torch.ones(2, 8))
