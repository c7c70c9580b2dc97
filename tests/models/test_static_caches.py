"""Decoders as transformers exports them: a cache in a plain object is state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.integrations.executorch import (
    TorchExportableModuleForDecoderOnlyLM,
    TorchExportableModuleWithHybridCache,
    TorchExportableModuleWithStaticCache,
    convert_and_export_with_cache,
)

import coreai_onnx
from coreai_onnx import OnnxProgram, TorchConverter
from tests.externalised import kernels_built
from tests.tolerances import assert_close

LENGTH = 16
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
PROMPT = torch.tensor([[5, 9, 2]])
STEPS = ([11], [3], [60], [7])
KINDS = ("key_cache", "value_cache", "cumulative_length")
STATES = [f"{kind}_{i}" for i in (0, 1) for kind in KINDS]


def decoder(kind: str) -> Any:
    torch.manual_seed(0)
    layers = ["sliding_attention", "full_attention"]
    if kind == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**SHAPE))
    elif kind == "mistral":
        model = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8))
    else:
        extra: dict[str, Any] = {"head_dim": 8, "sliding_window": 8, "layer_types": layers}
        model = Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, **extra))
    cache = {"batch_size": 1, "max_cache_len": LENGTH}
    model.generation_config = GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=LENGTH, cache_config=cache
    )
    return model.eval()


def arguments(tokens: Any, start: int) -> dict[str, torch.Tensor]:
    ids = torch.as_tensor(tokens).reshape(1, -1)
    return {"input_ids": ids, "cache_position": torch.arange(start, start + ids.shape[1])}


def follows(program: OnnxProgram, module: Callable[..., torch.Tensor]) -> None:
    """A prompt and some tokens, with and without kernels, give what torch gives."""
    for kernels in (False, True) if kernels_built() else (False,):
        session, start = coreai_onnx.session(program, kernels=kernels), 0
        assert sorted(session.states) == sorted(STATES)
        for tokens in (PROMPT, *STEPS):
            given = arguments(tokens, start)
            with torch.no_grad():
                expected = module(**given)
            assert_close(session.run(**given)[0], expected, message=f"{start}, kernels={kernels}")
            start += given["input_ids"].shape[1]


def exported(module: torch.nn.Module, *, strict: bool) -> torch.export.ExportedProgram:
    length = Dim("length", min=1, max=LENGTH - 1)
    dynamic = {"input_ids": {1: length}, "cache_position": {0: length}}
    with torch.no_grad():
        return torch.export.export(
            module, (), arguments(PROMPT, 0), dynamic_shapes=dynamic, strict=strict
        )


@pytest.mark.parametrize("kind", ["llama"])
def test_a_static_cache(kind: str) -> None:
    module = TorchExportableModuleWithStaticCache(decoder(kind))
    converter = TorchConverter()
    converter.add_pytorch_module(module, export_fn=lambda m: exported(m, strict=False))
    follows(converter.to_onnx().optimize(), module)


def test_layers_that_slide_and_layers_that_do_not() -> None:
    module = TorchExportableModuleForDecoderOnlyLM(decoder("gemma3"))
    assert isinstance(module.model, TorchExportableModuleWithHybridCache)
    program = module.export(**arguments([1], 0), strict=False)
    made = TorchConverter().add_exported_program(program).to_onnx().optimize()
    session, eager = coreai_onnx.session(made), decoder("gemma3")
    ids = torch.tensor([[5, 9, 2, 11, 3, 60]])
    with torch.no_grad():
        expected = eager(ids).logits
    for i in range(ids.shape[1]):
        (logits,) = session.run(**arguments(ids[:, i : i + 1], i))
        assert_close(logits, expected[:, i : i + 1])


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects:UserWarning")
def test_transformers_own_export() -> None:
    model = decoder("llama")
    program = convert_and_export_with_cache(model, strict=False)
    made = TorchConverter().add_exported_program(program).to_onnx().optimize()
    module = TorchExportableModuleWithStaticCache(decoder("llama"))
    session = coreai_onnx.session(made)
    for i, token in enumerate((5, 9, 2, 11)):
        with torch.no_grad():
            expected = module(**arguments([token], i))
        assert_close(session.run(**arguments([token], i))[0], expected)
