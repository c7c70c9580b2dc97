"""``coreai-onnx quantize``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coreai_onnx.cli import main
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import perplexity
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.create import session
from tests.quantization.example_weights import correlated_inputs, heavy_tailed, linear
from tests.support.huggingface_folders import llama_folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": linear(heavy_tailed(64, 128))}).save(path)
    return path


def test_a_file_in_place(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = correlated_inputs(3, 128)
    before, size = session(path).run(x)[0], path.stat().st_size
    assert main(["quantize", str(path), "-o", str(path), "--bits", "8", "--layers"]) == 0
    out = capsys.readouterr().out
    assert "quantized 1 weights: 32.0 KiB → 8.8 KiB (3.7 times smaller)" in out
    assert "layer  [64, 128]  8 bits, groups of 32, hqq" in out
    assert out.endswith(f"wrote {path} ({path.stat().st_size / 1024:.1f} KiB)\n")
    assert path.stat().st_size < size / 2
    after = session(path, kernels=False).run(x)[0]
    assert np.abs(after - before).max() < 0.02 * np.abs(before).max()
    assert main(["quantize", str(path), "-o", str(path)]) == 2
    assert "the model is quantized already" in capsys.readouterr().err


def test_calibration_rules_and_target(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = path.with_name("inputs"), path.with_name("q.onnx")
    folder.mkdir()
    for number in range(3):
        np.savez(folder / f"{number}.npz", x=correlated_inputs(50, 128))
    words = [
        "--method",
        "gptq",
        "--calibration",
        str(folder),
        "--rule",
        "layer=8:64",
        "--symmetric",
    ]
    assert main(["quantize", str(path), "-o", str(out), *words, "--target", "onnxruntime"]) == 0
    assert "8 bits, groups of 64, gptq" in capsys.readouterr().out
    (node,) = OnnxProgram.load(out).model.graph
    assert node.op_type == "linear_nbits.bits8"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bits", "5"], "bits=5; choose from 8, 4, 3, 2"),
        (["--rule", "layer=4:24"], "layer: groups of 24 do not divide its 128 inputs"),
        (["--method", "magic"], "method='magic'; choose from"),
        (["--method", "gptq"], "needs calibration data"),
        (["--calibration", "nowhere", "--method", "gptq"], "cannot read nowhere"),
        (["--calibration", "{}", "--method", "gptq"], "the folder has no .npz file"),
        (["--calibration", "{}/m.onnx", "--method", "gptq"], "cannot read"),
        (["--rule", "layer"], "write PATTERN=BITS or PATTERN=BITS:GROUP"),
        (["--rule", "head=8"], "the pattern 'head' matches no weight"),
        (["--skip", "*"], "there is nothing to quantize"),
    ],
)
def test_errors_write_nothing(
    path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    before = path.read_bytes()
    words = [word.format(path.parent) for word in words]
    assert main(["quantize", str(path), "-o", str(path), *words]) == 2
    assert message in capsys.readouterr().err
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["m.onnx"]


def test_the_change_of_outputs_on_evaluation_data(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(path.with_name("call.npz"), x=correlated_inputs(50, 128))
    words = ["--bits", "8", "--evaluation", str(path.with_name("call.npz"))]
    assert main(["quantize", str(path), "-o", str(path), *words]) == 0
    out = capsys.readouterr().out
    assert "change of the outputs:\n  output  SQNR dB  cosine" in out


def test_perplexity_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llama_folder(tmp_path / "llama")
    export_model(tmp_path / "llama", folder := tmp_path / "out", check=False)
    (text := tmp_path / "text.txt").write_text("some text to predict")
    before = perplexity(folder, text.read_text())
    words = ["quantize", str(folder / "model.onnx"), "-o", str(folder / "model.onnx")]
    assert main([*words, "--bits", "3", "--perplexity", str(text)]) == 0
    row = next(x for x in capsys.readouterr().out.splitlines() if "perplexity" in x)
    assert row.split()[1:3] == [f"{before:.6g}", f"{perplexity(folder, text.read_text()):.6g}"]
    assert row.split()[1] != row.split()[2]
