"""Layers of torch in 16 bits open in stock onnxruntimes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn
from torch.export import Dim

from tests.compat.half_precision import NARROW, Result, prepare, run_release
from tests.models.architecture import Architecture


class Attend(nn.Module):
    """Attention of torch's module over its own input."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Permuted(nn.Module):
    """A linear layer over the channels of what has them first or last."""

    def __init__(self, *perm: int) -> None:
        super().__init__()
        self.perm, self.linear = perm, nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.permute(self.perm))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Attend(batch_first=True),
    "attention_of_columns": lambda: Attend(batch_first=False),
    "encoder": lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
    "norm_first": lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True),
    "linear": lambda: Permuted(1, 0, 2),
}


def layer(name: str) -> Architecture:
    def inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
        x = torch.randn(batch, length, 16)
        return {"src" if name in ("encoder", "norm_first") else "x": x}

    dims = {0: Dim("batch"), 1: Dim("seq", max=64)}
    dynamic = {next(iter(inputs(1, 1))): dims}
    return Architecture(name, LAYERS[name], inputs, dynamic, ((2, 5), (1, 9), (4, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", NARROW)
def test_layers_of_torch_open_and_agree_in_every_release(dtype: str, tmp_path: Path) -> None:
    cases = [prepare(layer(name), NARROW[dtype], tmp_path) for name in LAYERS]
    for release in (onnxruntime.__version__, "1.21.1", "1.24.4", "1.30.0"):
        results = run_release(release, tmp_path, cases)
        failures = {case: str(found) for case, found in results.items() if not found.agrees}
        assert failures == {}, release
        for file in tmp_path.glob("*.outputs.npz"):
            file.unlink()


def test_a_crash_and_an_error_are_results(tmp_path: Path) -> None:
    good = prepare(layer("linear"), torch.float16, tmp_path)
    (tmp_path / "broken.float16.opset23.onnx").write_bytes(b"no model")
    found = run_release(onnxruntime.__version__, tmp_path, ["broken.float16", good])
    assert found[good].agrees
    assert "INVALID_PROTOBUF" in found["broken.float16"].failure
    assert not found["broken.float16"].agrees


def test_a_cell_says_how_far_off_a_model_is() -> None:
    assert str(Result(0.5)) == "0.50"
    assert str(Result(7.25, 0.01)) == "7.25 (1.0%)"
    assert str(Result(failure="crash (-11)")) == "crash (-11)"
