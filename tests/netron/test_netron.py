"""Netron shows a composite as one node, and its body when the ``ƒ`` of the node is clicked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx import ExternalizeSpec
from coreai_onnx.composites import SDPA, RMSNorm, RMSNormImpl
from tests.netron import viewer

pytestmark = pytest.mark.slow


class Layer(torch.nn.Module):
    """Norm, attention, residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.attention = RMSNorm(16), torch.nn.Linear(16, 48), SDPA()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (12, 4)).transpose(1, 2).chunk(3, dim=1)
        return x + self.attention(q, k, v).transpose(1, 2).flatten(-2)


class Layers(torch.nn.Module):
    """Two layers and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = Layer(), Layer(), RMSNorm(16)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.norm(self.second(self.first(input)))


def save(path: Path) -> Path:
    specs: list[ExternalizeSpec | type] = [
        ExternalizeSpec(RMSNormImpl, "rms_norm"),
        ExternalizeSpec(SDPA, "scaled_dot_product_attention"),
        Layer,
    ]
    model = Layers().eval()
    dims = {"input": {0: Dim("batch"), 1: Dim("seq")}}
    program = coreai_onnx.convert(
        model, (torch.randn(2, 5, 16),), dynamic_shapes=dims, externalize_modules=specs
    )
    program.save(path, debug_info="full")
    return path


def test_composites_are_functions_that_open(tmp_path: Path) -> None:
    viewer.browser_path()
    path = save(tmp_path / "layers.onnx")
    with (
        viewer.serving(path, viewer.free_port()) as address,
        viewer.graph_of(address, "Layer") as graph,
    ):
        graph.page.screenshot(path=tmp_path / "graph.png")
        shown = [words[0] for words in graph.boxes()]
        assert shown.count("Layer") == 2
        assert "rms_norm" in shown
        assert "RMSNormalization" not in shown
        graph.open_function("Layer")
        graph.wait_for("MatMul")
        graph.page.screenshot(path=tmp_path / "layer.png")
        body = [words[0] for words in graph.boxes()]
        assert "rms_norm" in body
        assert "Layer" not in body
        graph.open_function("scaled_dot")
        graph.wait_for("Attention")
        graph.page.screenshot(path=tmp_path / "attention.png")
        assert "rms_norm" not in [words[0] for words in graph.boxes()]


def test_attributes_metadata_and_formulas_are_told(tmp_path: Path) -> None:
    path = save(tmp_path / "layers.onnx")
    with (
        viewer.serving(path, viewer.free_port()) as address,
        viewer.graph_of(address, "Layer") as graph,
    ):
        node = graph.properties("rms_norm").splitlines()
        assert {"axes", "eps", "coreai.scope", "coreai.class", "coreai.source"} <= {*node}
        assert {"ai.coreai", "-1", "RMSNormImpl"} <= {*node}
        assert any(line.startswith("tests/netron/test_netron.py:") for line in node), node
        graph.close()
        model = graph.model_properties().splitlines()
        made_by = f"coreai_onnx {coreai_onnx.__version__}"
        assert {made_by, "ai.onnx v23", "coreai.target", "onnxruntime"} <= {*model}, model
        graph.close()
        graph.open_function("rms_norm")
        graph.wait_for("RMSNormalization")
        function = graph.function_properties()
        assert "description" in function
        assert "mean" in function
