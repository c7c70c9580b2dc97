"""The backend of transformers' exporters: models, parts of a generation, files, quantizers."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from coreai_onnx.errors import InputError, LibraryVersionError, QuantizationError
from coreai_onnx.program import OnnxProgram
from tests.support.tolerances import assert_close

exporters = pytest.importorskip("transformers.exporters.auto")

from transformers.exporters.base import ExportedModel  # noqa: E402
from transformers.exporters.utils import (  # noqa: E402
    decompose_for_generation,
    get_leaf_tensors,
)

from coreai_onnx.huggingface import transformers_backend  # noqa: E402
from coreai_onnx.huggingface.transformers_backend import (  # noqa: E402
    CoreaiConfig,
    CoreaiQuantizer,
)

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
}
TEXT: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 64}
IMAGE = 90


def ids(batch: int = 2, length: int = 7) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch * length)
    tokens = torch.randint(3, IMAGE, (batch, length), generator=generator)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT)).eval()


def llava() -> Any:
    torch.manual_seed(0)
    vision = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**vision, image_size=16, patch_size=8),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=IMAGE,
    )
    return transformers.LlavaForConditionalGeneration(config).eval()


def whisper() -> Any:
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=96, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8,
        max_source_positions=20, max_target_positions=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=3, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config).eval()


def mamba() -> Any:
    torch.manual_seed(0)
    config = transformers.MambaConfig(
        hidden_size=32, num_hidden_layers=2, vocab_size=96, state_size=8
    )
    return transformers.MambaForCausalLM(config).eval()


def picture_and_text() -> dict[str, torch.Tensor]:
    text = ids(2, 9)
    text["input_ids"][:, 1:5] = IMAGE
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    return {**text, "pixel_values": pixels}


def sound() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(3))}


def exporter() -> Any:
    return exporters.AutoHfExporter.from_config(CoreaiConfig())


def agree(result: Any, expected: Any) -> None:
    got, wanted = get_leaf_tensors(result), get_leaf_tensors(expected)
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert_close(got[name], tensor.detach())


def test_a_model_at_other_sizes_and_from_a_folder(tmp_path: Path) -> None:
    model, config = llama(), CoreaiConfig(dynamic=True)
    exported = exporter().export(model, ids(), config)
    assert isinstance(exported.program, OnnxProgram)
    assert exported.program.composites()["ai.coreai::scaled_dot_product_attention"] == 2
    for inputs in (ids(), ids(3, 5)):
        result = exported(**inputs)
        assert type(result) is type(model(**inputs))
        agree(result, model(**inputs))
    exported.save_pretrained(tmp_path)
    assert {"model.onnx", "model.onnx.data", "export.json", "config.json"} <= {
        file.name for file in tmp_path.iterdir()
    }
    for kernels in (True, False):
        loaded = ExportedModel.from_pretrained(tmp_path, kernels=kernels, threads=1)
        assert loaded.runners["model"].session.kernels is kernels
        agree(loaded(**ids(1, 4)), model(**ids(1, 4)))
    assert loaded.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("model", "inputs", "parts"),
    [
        (llama, ids, {"prefill", "decode"}),
        (llava, picture_and_text, {"language_model", "lm_head", "decode"}),
        (whisper, sound, {"prefill", "decode"}),
        (mamba, ids, {"prefill", "decode"}),
    ],
)
def test_the_parts_of_a_generation(model: Any, inputs: Any, parts: set[str]) -> None:
    made = model()
    expected = decompose_for_generation(made, inputs())
    exported = exporter().export_for_generation(made, inputs(), CoreaiConfig(dynamic=True))
    assert parts <= set(exported.components) == set(expected)
    for name, (part, arguments) in expected.items():
        runner = exported.runners[name]
        fed = {key: value for key, value in arguments.items() if key in runner.metadata.kwargs}
        with torch.no_grad():
            agree(runner(**copy.deepcopy(fed)), part(**copy.deepcopy(arguments)))


def test_a_static_cache() -> None:
    model = llama()
    generation = transformers.GenerationConfig(cache_implementation="static", max_length=16)
    parts = decompose_for_generation(model, ids(), generation_config=generation)
    part, arguments = parts["decode"]
    exported = exporter().export(part, copy.deepcopy(arguments), CoreaiConfig())
    with torch.no_grad():
        agree(exported(**copy.deepcopy(arguments)), part(**copy.deepcopy(arguments)))


@pytest.mark.parametrize("target", ["contrib", "portable"])
def test_targets(target: Any) -> None:
    model, config = llama(), CoreaiConfig(dynamic=True, target=target)
    agree(exporter().export(model, ids(), config)(**ids(3, 5)), model(**ids(3, 5)))


def test_a_quantizer_with_and_without_data() -> None:
    model = llama()
    for quantizer in (
        CoreaiQuantizer(bits=4, group_size=32, minimum_size=0),
        CoreaiQuantizer([ids(), ids(1, 5)], bits=4, group_size=32, method="gptq", minimum_size=0),
    ):
        exported = exporter().export(model, ids(), CoreaiConfig(dynamic=True, quantizer=quantizer))
        assert exported.program.composites()["ai.coreai::linear_nbits.zero_points"] >= 14
        difference = (exported(**ids()).logits - model(**ids()).logits).abs().max()
        assert 0 < difference < 0.5
    data = CoreaiQuantizer([{"input_ids": torch.ones(1, 2, 3)}], bits=4, method="gptq")
    with pytest.raises(QuantizationError):
        exporter().export(model, ids(), CoreaiConfig(dynamic=True, quantizer=data))


def test_a_missing_argument_is_named() -> None:
    exported = exporter().export(llama(), ids(), CoreaiConfig(dynamic=True))
    with pytest.raises(InputError, match="attention_mask"):
        exported(input_ids=ids()["input_ids"])


def test_a_transformers_without_exporters_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.exporters.auto", None)
    monkeypatch.delitem(sys.modules, transformers_backend.__name__)
    with pytest.raises(LibraryVersionError, match=r'pip install "transformers>=5.23"'):
        importlib.import_module(transformers_backend.__name__)
