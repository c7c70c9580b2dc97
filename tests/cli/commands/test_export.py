"""``coreai-onnx export``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type

from coreai_onnx.cli import main
from coreai_onnx.huggingface import checkpoints
from coreai_onnx.program import OnnxProgram
from tests.huggingface.checkpoints.gguf.files import write_model
from tests.support.huggingface_folders import llama_folder


def test_a_folder_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llama_folder(tmp_path / "llama")
    capsys.readouterr()
    assert main(["export", str(tmp_path / "llama"), "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "text-generation" in printed
    for name in ("model.onnx", "genai_config.json", "tokenizer.json"):
        assert name in printed
        assert (tmp_path / "out" / name).is_file()
    command = ["export", str(tmp_path / "llama"), "-o", str(tmp_path / "out"), "--no-check"]
    assert main(command) == 2
    assert (
        "exists and is not empty; give a new folder, or overwrite=True" in capsys.readouterr().err
    )
    assert main([*command, "--overwrite", "--cache", "static"]) == 0


def test_a_folder_with_weights_of_few_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    llama_folder(tmp_path / "llama")
    words = ["export", str(tmp_path / "llama"), "-o", str(tmp_path / "out"), "--no-check"]
    assert main([*words, "--bits", "4", "--rule", "*lm_head=8", "--layers"]) == 0
    printed = capsys.readouterr().out
    assert "times smaller)" in printed
    assert "8 bits, groups of 32, hqq" in printed
    model = OnnxProgram.load(tmp_path / "out" / "model.onnx").model
    assert {n.op_type.partition(".")[0] for n in model.graph} >= {"linear_nbits", "embedding_nbits"}
    assert main([*words, "--overwrite", "--rule", "*lm_head=8"]) == 2
    assert "--rule is for a quantization; give --bits" in capsys.readouterr().err


def test_errors_are_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "nowhere"), "-o", str(out)]) == 2
    assert "no such folder or file" in capsys.readouterr().err
    assert main(["export", str(tmp_path), "-o", str(out)]) == 2
    assert "there is no config.json" in capsys.readouterr().err
    assert not out.exists()


def test_a_gguf_file_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "tiny.gguf", tmp_path / "out"
    write_model(path, "llama", (Type.Q4_K, Type.Q6_K))
    assert main(["export", str(path), "-o", str(out), "--target", "kernels"]) == 0
    assert "tokenizer.json" in capsys.readouterr().out
    composites = OnnxProgram.load(out / "model.onnx").composites()
    assert composites["ai.coreai::linear_nbits.minimums_scales6"] == 7


def test_inputs_of_a_gguf_file_are_rounded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "tiny.gguf", tmp_path / "out"
    write_model(path, "llama", (Type.Q4_K, Type.Q6_K))
    words = ["export", str(path), "-o", str(out)]
    assert main([*words, "--activation-bits", "4"]) == 2
    assert main([*words, "--symmetric"]) == 2
    assert "--symmetric is for a quantization; give --bits" in capsys.readouterr().err
    # The folder is compared with torch, which rounds as well.
    assert main([*words, "--activation-bits", "8"]) == 0
    composites = OnnxProgram.load(out / "model.onnx").composites()
    assert composites["ai.coreai::linear_nbits.rounded_minimums_scales6"] == 7
    llama_folder(tmp_path / "llama")
    assert main(["export", str(tmp_path / "llama"), *words[2:], "--activation-bits", "8"]) == 2
    assert "--activation-bits is for a quantization" in capsys.readouterr().err


def test_a_missing_gguf_package_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.gguf"
    path.touch()
    for name in [n for n in sys.modules if n.startswith(f"{checkpoints.__name__}.gguf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(checkpoints, "gguf", raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert main(["export", str(path), "-o", str(tmp_path / "out")]) == 2
    assert (
        f"{path}: the gguf package is not installed: pip install gguf\n" in capsys.readouterr().err
    )


def test_the_help_names_gguf_files(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    assert "GGUF file" in capsys.readouterr().out
