"""The list of operators and types that models need, as onnxruntime's builds read it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import coreai_onnx
from coreai_onnx import OnnxProgram, required_operators
from coreai_onnx.errors import SessionError
from tests.support import my_ops
from tests.support.small_models import layers_model, linear_model


class Normed(torch.nn.Module):
    """A composite with a kernel, and one that onnxruntime's optimizer makes of two nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.RMSNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(self.norm(x)))


def listed(text: str) -> dict[str, set[str]]:
    """Return the operators by domain, as onnxruntime's own parser reads them."""
    from onnxruntime.tools.reduced_build_config_parser import parse_config

    path = Path("required_operators.config")
    path.write_text(text)
    operators, _ = parse_config(str(path), True)
    found: dict[str, set[str]] = {}
    for domain, by_opset in operators.items():
        found[domain] = {name for names in by_opset.values() for name in names}
    return found


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def program() -> OnnxProgram:
    return coreai_onnx.convert(Normed().eval(), (torch.randn(2, 8),)).optimize()


def test_bodies_and_optimized_operators(program: OnnxProgram) -> None:
    text = required_operators([program], kernels=False)
    found = listed(text)
    assert {"RMSNormalization", "Relu"} <= found["ai.onnx"]
    assert "FusedGemm" in found["com.microsoft"], "onnxruntime's optimizer makes it"
    assert "ai.coreai" not in found
    assert '{"inputs": {"0": ["float"]' in text
    assert "{" not in required_operators([program], kernels=False, types=False)


@pytest.mark.usefixtures("kernels")
def test_kernels_are_operators(program: OnnxProgram) -> None:
    program.save("m.onnx")
    text = required_operators(["m.onnx"], kernels=True)
    assert "\nai.coreai;1;rms_norm\n" in text
    assert "# - m.onnx\n" in text
    assert "RMSNormalization" not in text


def test_a_set_of_models_and_their_entrypoints() -> None:
    text = required_operators([linear_model(), layers_model()], kernels=False, types=False)
    alone = [
        listed(required_operators([model], kernels=False, types=False))
        for model in (linear_model(), layers_model())
    ]
    both = listed(text)
    assert both["ai.onnx"] == alone[0]["ai.onnx"] | alone[1]["ai.onnx"]
    several = OnnxProgram({"first": linear_model(), "second": layers_model()})
    assert listed(required_operators([several], kernels=False, types=False)) == both


def test_custom_ops_are_listed() -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return my_ops.scale(x, 2.0)

    exported = torch.export.export(Scaled(), (torch.randn(2),))
    model = my_ops.converter().add_exported_program(exported).to_onnx()
    text = required_operators([model], custom_ops=[my_ops.library()])
    assert "\nmy.ops;1;Scale\n" in text


def test_errors_and_logging(tmp_path: Path) -> None:
    handlers = list(logging.getLogger().handlers)
    with pytest.raises(SessionError, match="there are no models"):
        required_operators([])
    with pytest.raises(SessionError, match=r"nowhere\.onnx: no such file"):
        required_operators([linear_model(), tmp_path / "nowhere.onnx"], kernels=False)
    assert logging.getLogger().handlers == handlers
