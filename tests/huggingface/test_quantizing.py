"""Exports are quantized in one step: rules, reports, targets, and programs of several files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import coreai_onnx
from coreai_onnx.cli import main
from coreai_onnx.errors import QuantizationError
from coreai_onnx.huggingface.exporting import export_model
from coreai_onnx.huggingface.quantizing import calls_of_file, quantize_programs
from coreai_onnx.model.inventory import graphs
from coreai_onnx.program import OnnxProgram
from tests.support.huggingface_folders import BERT, llama_folder, tokenizer
from tests.support.tolerances import assert_close

TEXT = "Weights of few bits, with a scale for each group. " * 12
IDS = torch.randint(3, 200, (2, 9), generator=torch.Generator().manual_seed(0))
SIZES = {"vocab_size": 260, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
SIZES |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
SIZES |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 1}


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
    for options in ({"method": "gptq"}, {"activations": True}):
        with pytest.raises(QuantizationError, match="needs calibration data"):
            export_model(tmp_path / "nowhere", tmp_path / "out", quantization=options)
    assert not (tmp_path / "out").exists()


def t5() -> Any:
    sizes = {"vocab_size": 260, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1}
    config = transformers.T5Config(**sizes, num_heads=2, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


def whisper() -> Any:
    sizes = {"num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 32}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.WhisperConfig(**SIZES, **sizes, **special)
    return transformers.WhisperForConditionalGeneration(config)


def bart() -> Any:
    config = transformers.BartConfig(**SIZES, max_position_embeddings=64)
    return transformers.BartForConditionalGeneration(config)


SPECTRA = {"input_features": torch.ones(2, 16, 40), "decoder_input_ids": IDS}
TOKENS = {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]}


@pytest.mark.parametrize(("make", "call"), [(t5, TOKENS), (bart, TOKENS), (whisper, SPECTRA)])
def test_calls_of_an_encoder_and_a_decoder(make: Any, call: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make().eval()
    options = {"bits": 4, "method": "gptq", "minimum_size": 0, "calibration": [call]}
    exported = export_model(model, tmp_path / "quantized", quantization=options, check=False)
    for program in exported.programs.values():
        assert program.quantization_report is not None
        assert program.quantization_report.outputs[0].sqnr > 5
    export_model(model, tmp_path / "plain", check=False)
    with torch.no_grad():
        expected = model(**call).logits
    path = tmp_path / "plain" / "decoder_model_merged.onnx"
    (feeds,) = calls_of_file(path, [call])
    assert_close(OnnxProgram.load(path).session().run(**feeds)["logits"], expected.numpy())


def test_a_text_is_read_in_windows_of_the_context(tmp_path: Path) -> None:
    model = llama_folder(tmp_path / "llama")
    options = {"method": "gptq", "minimum_size": 0}
    exported = export_model(
        tmp_path / "llama", tmp_path / "out", quantization={**options, "calibration": TEXT}
    )
    report = exported.program.quantization_report
    assert report is not None
    assert sum(layer.output_sqnr is not None for layer in report.layers) == 15
    export_model(tmp_path / "llama", tmp_path / "plain")
    path = tmp_path / "plain" / "model.onnx"
    calls = list(calls_of_file(path, TEXT))
    ids = tokenizer()(TEXT, return_tensors="pt")["input_ids"]
    assert [call["input_ids"].shape[1] for call in calls] == [256, 256, len(TEXT) - 512]
    with torch.no_grad():
        expected = model(ids[:, 256:512]).logits
    assert_close(OnnxProgram.load(path).session().run(**calls[1])["logits"], expected.numpy())
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["quantize", str(path), "-o", str(tmp_path / "int4.onnx"), "--method", "gptq"]
    assert main([*words, "--minimum-size", "0", "--calibration", str(tmp_path / "text.txt")]) == 0
    names = exported.program.model.graph.initializers
    quantized = OnnxProgram.load(tmp_path / "int4.onnx").model.graph.initializers
    for name in ("model.model.layers.1.mlp.down_proj.weight.codes", "model.lm_head.weight.codes"):
        arrays = [given[name].const_value.numpy() for given in (names, quantized)]
        np.testing.assert_array_equal(*arrays)


def test_a_text_of_a_model_that_reads_tokens_once(tmp_path: Path) -> None:
    config = transformers.BertConfig(**BERT)
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    tokenizer().save_pretrained(tmp_path / "bert")
    options = {"bits": 8, "activations": True, "calibration": TEXT}
    program = export_model(tmp_path / "bert", tmp_path / "out", quantization=options).program
    assert program.quantization_report is not None
    assert program.quantization_report.outputs[0].sqnr > 20


def test_texts_that_cannot_be_read(tmp_path: Path) -> None:
    options = {"method": "gptq", "calibration": TEXT}
    with pytest.raises(QuantizationError, match="is a text, and the model has no tokenizer"):
        export_model(t5().eval(), tmp_path / "out", quantization=options)
    whisper().save_pretrained(tmp_path / "whisper")
    tokenizer().save_pretrained(tmp_path / "whisper")
    with pytest.raises(QuantizationError, match="calibrated with spectrograms, not with a text"):
        export_model(tmp_path / "whisper", tmp_path / "out", quantization=options)
    with pytest.raises(QuantizationError, match="give calls of the model by name: input_ids"):
        export_model(
            t5().eval(), tmp_path / "out", quantization={"method": "gptq", "calibration": [(IDS,)]}
        )


@pytest.mark.parametrize("data", [TEXT, [{"input": torch.ones(2, 8)}]], ids=["text", "calls"])
def test_data_of_several_files_names_them(data: Any) -> None:
    """Of the files of a pipeline, none takes the calls of another."""
    program = coreai_onnx.convert(torch.nn.Linear(8, 8), (torch.ones(2, 8),))
    programs = {"unet/model.onnx": program, "vae_decoder/model.onnx": program}
    message = "names to calls; the files are unet/model.onnx, vae_decoder/model.onnx"
    with pytest.raises(QuantizationError, match=message):
        quantize_programs(programs, {"bits": 4, "calibration": data}, "onnxruntime")
