"""``export_python``: functions and modules as Python source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx.errors import InputError
from tests.tolerances import assert_close


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


@pytest.fixture(scope="module")
def kernel() -> coreai_onnx.ExportedModel:
    shapes = {"x": {0: Dim("B"), 1: Dim("T")}, "weight": {}}
    args = (torch.randn(2, 64, 256), torch.randn(256))
    return coreai_onnx.export_python(rms_norm, args, dynamic_shapes=shapes)


def test_the_rms_norm_of_the_documentation_is_one_composite(kernel) -> None:
    assert kernel.program.composites() == {"ai.coreai::rms_norm": 1}
    assert "    return rms_norm(x, weight, eps=1e-6)\n" in kernel.source
    assert 'def main(x: FLOAT["B", "T", 256], weight: FLOAT[256]):' in kernel.source
    assert kernel.dynamic_shape_names == ["B", "T"]
    assert kernel.tensor_arg_count == 2


def test_run_and_boxed_run(kernel) -> None:
    args = (torch.randn(3, 5, 256), torch.randn(256))
    expected = rms_norm(*args)
    assert_close(kernel.run(*args), expected)
    boxed = list(args)
    assert_close(kernel.boxed_run(boxed), expected)
    assert boxed == []
    assert isinstance(kernel.run(*(item.numpy() for item in args)), type(args[0].numpy()))


def test_boxed_run_takes_a_list(kernel) -> None:
    with pytest.raises(InputError, match=r"takes a list, .* not a tuple\n  call run"):
        kernel.boxed_run((torch.ones(1, 1, 256), torch.ones(256)))


def test_the_source_is_a_module_with_call(kernel, tmp_path: Path) -> None:
    (tmp_path / "my_kernel.py").write_text(kernel.source)
    code = """import sys, numpy as np
from my_kernel import call
y = call(np.ones((2, 3, 256), np.float32), np.ones(256, np.float32))
assert y.shape == (2, 3, 256) and abs(y - 1).max() < 1e-5
assert not {"torch", "coreai_onnx"} & set(sys.modules)"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


@pytest.mark.parametrize("function", [lambda x: x + 1, torch.nn.Linear(4, 4).eval(), torch.relu])
def test_functions_and_modules(function, tmp_path: Path) -> None:
    exported = coreai_onnx.export_python(function, (torch.ones(2, 4),))
    with torch.no_grad():
        assert_close(exported.run(torch.ones(2, 4)), function(torch.ones(2, 4)))
    exported.save(tmp_path / "model.py")
    assert (tmp_path / "model.py").read_text() == exported.source


def test_outputs_keep_their_dtype() -> None:
    exported = coreai_onnx.export_python(lambda x: (x, x.float()), (torch.ones(2).bfloat16(),))
    half, single = exported.run(torch.ones(2).bfloat16())
    assert (half.dtype, single.dtype) == (torch.bfloat16, torch.float32)
