"""``coreai-onnx optimize``: files of this package and of others."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.create import session
from tests.debugging.small_reference import converted
from tests.support.small_models import counter_model, linear_model, linear_weights
from tests.support.tolerances import assert_close


class Encoder(torch.nn.Module):
    """What exporters spell in their own ways: embeddings, attention, norms, splits, means."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.norm, self.qkv = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        heads = self.qkv(self.norm(x)).view(*ids.shape, 12, 4).transpose(1, 2)
        q, k, v = heads.chunk(3, dim=1)
        scores = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        x = x + (scores @ v).transpose(1, 2).reshape(*ids.shape, 16)
        return torch.nn.functional.gelu(x).mean(1)


def test_a_file_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": linear_model()}).save(path, external_data=True)
    assert main(["optimize", str(path), "-o", str(path), "--external-data"]) == 0
    out = capsys.readouterr().out
    assert "nodes: 3 → 2" in out
    assert f"wrote {path} (" in out
    x, weights = np.ones((2, 8), np.float32), linear_weights()
    assert_close(session(path).run(x)["y"], x @ weights["weight"] + weights["bias"])
    assert main(["optimize", str(path), "-o", str(path), "--external-data"]) == 0
    assert "nodes: 2 → 2" in capsys.readouterr().out


@pytest.mark.parametrize("opset", [9, 11, 12, 13, 14, 17])
@pytest.mark.parametrize("target", ["onnxruntime", "contrib"])
def test_files_of_another_exporter(tmp_path: Path, opset: int, target: str) -> None:
    torch.manual_seed(0)
    model, ids = Encoder().eval(), torch.randint(0, 50, (2, 7))
    path, optimized = tmp_path / "theirs.onnx", tmp_path / "ours.onnx"
    axes = {"ids": {0: "batch", 1: "seq"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that its tracing exporter is old
        torch.onnx.export(
            model, (ids,), path, dynamo=False, opset_version=opset,
            input_names=["ids"], output_names=["y"], dynamic_axes=axes,
        )  # fmt: skip
    assert main(["optimize", str(path), "-o", str(optimized), "--target", target]) == 0
    before, after = (len(OnnxProgram.load(file).model.graph) for file in (path, optimized))
    assert after < before
    given = torch.randint(0, 50, (3, 5))
    assert_close(session(optimized).run(given)[0], model(given).detach())


def test_a_target_that_cannot_be_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    program = OnnxProgram({"main": linear_model()})
    program.model.graph.node(0).domain = "com.acme"
    program.save(path)
    before = path.read_bytes()
    assert main(["optimize", str(path), "-o", str(path), "--target", "portable"]) == 2
    assert "the target portable needs opset 18" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_pass_that_fails_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": linear_model()}).save(path)
    before = path.read_bytes()
    text = "def breaks(graph, why):\n    graph.nodes.clear()\n    return 1\n"
    (tmp_path / "passes_that_break.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["optimize", str(path), "-o", str(path), "--passes", "passes_that_break:breaks"]
    assert main(words) == 2
    assert "pass breaks broke main" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.fixture
def recorded(tmp_path: Path) -> list[str]:
    """Write a file and its record; return the words that verify it."""
    model, record = tmp_path / "m.onnx", tmp_path / "m.pt2"
    converted().save(model, record=record)
    return ["optimize", str(model), "-o", str(tmp_path / "out.onnx"), "--verify", str(record)]


def test_right_passes_are_verified(recorded: list[str], tmp_path: Path) -> None:
    assert main([*recorded, "--target", "portable"]) == 0
    assert (tmp_path / "out.onnx").is_file()


def test_a_wrong_pass_is_named_with_its_place_and_a_reproduction(
    recorded: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "wrong_passes.py").write_text(
        "def sine_of_tanh(graph, why):\n"
        "    found = [node for node in graph.nodes if node.op == 'Tanh']\n"
        "    for node in found:\n        node.op = 'Sin'\n"
        "    return len(found)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = [*recorded, "--passes", "wrong_passes:sine_of_tanh"]
    assert main(words[:-4] + words[-2:]) == 0  # unverified
    (tmp_path / "out.onnx").unlink()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "pass sine_of_tanh on main made results" in error
    assert "hidden = torch.tanh(hidden) + x" in error
    reproduction = Path(error.rpartition("reproduced in ")[2].splitlines()[0])
    assert (reproduction / "run.py").is_file()
    assert not (tmp_path / "out.onnx").exists()


def test_a_record_of_another_conversion(
    recorded: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    OnnxProgram({"main": counter_model()}).save(tmp_path / "m.onnx")
    assert main(recorded) == 2
    assert "the record has no value for the input" in capsys.readouterr().err


def test_a_record_of_one_of_several_entrypoints(
    recorded: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = {"prefill": linear_model(), "decode": linear_model()}
    OnnxProgram(two).save(tmp_path / "two.onnx")
    recorded[1] = str(tmp_path / "two.onnx")
    assert main(recorded) == 2
    assert "a record is of one entrypoint" in capsys.readouterr().err
