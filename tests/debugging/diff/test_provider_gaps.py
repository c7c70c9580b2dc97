"""What an execution provider leaves to the CPU, as text."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
import torch

import coreai_onnx
from coreai_onnx.debugging.diff.provider_gaps import provider_gaps
from coreai_onnx.errors import LoadError, ProviderError, SessionError
from coreai_onnx.targets.providers import NAMES, WEBGPU

OPENVINO = NAMES["openvino"]
MODEL = """
<ir_version: 10, opset_import: ["": 18]>
main (float[n, 2] x, double[n] z) => (float[n, 2] y, int64[1] s, double[n] w) {
  [exp] a = Exp (x)  [max] y = Hardmax (a)  [size] t = Shape (x)  [twice] s = Mul (t, t)
  [sine] w = Exp (z)
}
"""


def saved(folder: Path, text: str = MODEL) -> Path:
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_reasons(tmp_path: Path) -> None:
    assert provider_gaps(saved(tmp_path), "webgpu").splitlines()[:2] == [
        "WebGpuExecutionProvider runs 2 of 5 nodes, by the kernels of onnxruntime 1.27.0",
        "1 of the others compute sizes or convert integer inputs, on the CPU on purpose",
    ]
    rows = [line.split() for line in provider_gaps(saved(tmp_path), "webgpu").splitlines()[4:]]
    assert [row[:2] for row in rows] == [["max", "Hardmax"], ["sine", "Exp"]]
    assert " ".join(rows[0][2:]) == "no kernel for the operator"
    assert " ".join(rows[1][2:]) == "no kernel for double (T), only for float, float16"
    text = provider_gaps(saved(tmp_path), "CUDAExecutionProvider")
    assert text.startswith("CUDAExecutionProvider runs 4 of 5 nodes")
    assert "sizes" not in text


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x).sin()


def test_lines_of_python(tmp_path: Path) -> None:
    program = coreai_onnx.convert(Model(), (torch.randn(1, 2, 3, 4),))
    program.save(tmp_path / "m.onnx")
    text = provider_gaps(tmp_path / "m.onnx", "webgpu")
    attention, sine = text.splitlines()[-2:]
    assert "no kernel for the operator" in attention
    assert "test_provider_gaps.py" in attention
    assert "no kernel for opset 23, only for 7 to 21" in sine
    program.optimize(target="webgpu").save(tmp_path / "m.onnx")
    (line,) = provider_gaps(tmp_path / "m.onnx", "webgpu").splitlines()
    assert line.startswith("WebGpuExecutionProvider runs 31 of 31 nodes")


def test_a_provider_that_is_installed(tmp_path: Path) -> None:
    text = provider_gaps(saved(tmp_path), "cpu")
    installed = f"the installed onnxruntime {ort.__version__}"
    assert text == f"CPUExecutionProvider runs 5 of 5 nodes, by {installed}"


def test_a_provider_whose_library_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = provider_gaps(saved(tmp_path), "webgpu").splitlines()
    monkeypatch.setattr(ort, "get_available_providers", lambda: [WEBGPU, OPENVINO])
    count, note, *rest = provider_gaps(saved(tmp_path), "webgpu").splitlines()
    assert [count, *rest] == expected
    assert note.startswith(f"without a run: onnxruntime {ort.__version__} has {WEBGPU}, but cannot")
    with pytest.raises(ProviderError, match=r"has OpenVINO.* but cannot load it"):
        provider_gaps(saved(tmp_path), "openvino")


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="pip install onnxruntime-openvino brings it"):
        provider_gaps(saved(tmp_path), "openvino")
    with pytest.raises(LoadError, match="no such file"):
        provider_gaps(tmp_path / "nothing.onnx", "webgpu")
