"""Exports are quantized in one step: rules, reports, targets, and programs of several files."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.errors import QuantizationError
from coreai_onnx.huggingface.exporting import export_model
from coreai_onnx.model.inventory import graphs
from coreai_onnx.program import OnnxProgram
from tests.support.huggingface_folders import llama_folder


def kinds(path: Path) -> list[str]:
    model = OnnxProgram.load(path).model
    return [n.op_type.partition(".")[0] for graph in graphs(model) for n in graph]


def test_rules_name_layers_that_passes_for_a_target_merge(tmp_path: Path) -> None:
    llama_folder(tmp_path / "llama")
    rules = {"*q_proj": 8}
    exported = export_model(
        tmp_path / "llama",
        tmp_path / "out",
        target="contrib",
        quantization={"bits": 4, "rules": rules, "minimum_size": 0},
    )
    report = exported.program.quantization_report
    assert report is not None
    bits = {layer.path.rpartition(".")[2]: layer.scheme.bits for layer in report.layers}
    assert (bits["q_proj"], bits["k_proj"], bits["lm_head"]) == (8, 4, 4)
    ops = kinds(tmp_path / "out" / "model.onnx")
    assert ops.count("MatMulNBits") == 13  # 7 products in each of 2 layers, and the head
    assert ops.count("linear_nbits") == 2


def test_options_are_checked_before_the_export(tmp_path: Path) -> None:
    with pytest.raises(QuantizationError, match="bits=5; choose from"):
        export_model(tmp_path / "nowhere", tmp_path / "out", quantization={"bits": 5})
    assert not (tmp_path / "out").exists()
