"""Decoders as transformers exports them: a cache in a plain object is state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.export import Dim
from transformers import (
    DynamicCache,
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
    register_dynamic_cache_export_support,
)

import coreai_onnx
from coreai_onnx import OnnxProgram, TorchConverter
from coreai_onnx.errors import ExportError
from tests.support.externalized import kernels_built
from tests.support.tolerances import assert_close

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


@pytest.fixture
def growing_caches() -> Iterator[None]:
    """torch.export takes a DynamicCache apart, as its users ask it to; not in other tests."""
    register_dynamic_cache_export_support()
    yield
    torch.utils._pytree._deregister_pytree_node(DynamicCache)
    del torch.fx._pytree.SUPPORTED_NODES[DynamicCache]


def cache_of(model: Any, ids: torch.Tensor) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)
    return cache


@pytest.mark.usefixtures("growing_caches")
def test_a_cache_that_grows_goes_in_and_comes_out() -> None:
    model, ids = decoder("llama"), torch.tensor([[5, 9, 2], [8, 1, 7]])
    given = {"input_ids": ids[:, :2], "past_key_values": cache_of(model, ids)}
    lengths = [[{0: Dim.AUTO, 2: Dim.AUTO}] * 2] * 2
    dynamic = {"input_ids": {0: Dim.AUTO, 1: Dim.AUTO}, "past_key_values": lengths}
    program = coreai_onnx.convert(model, (), given, dynamic_shapes=dynamic)
    session, cache = coreai_onnx.session(program, kernels=False), cache_of(model, ids)
    names = [f"{kind}_cache.{layer}" for kind in ("key", "value") for layer in (0, 1)]
    held: dict[str, Any] = {}
    for name in names:
        layer = cache.layers[int(name[-1])]
        held[name] = layer.keys if name.startswith("key") else layer.values
    for tokens in ([[11], [4]], [[3, 60, 7], [9, 9, 1]], [[0], [2]]):
        feeds = {f"past_key_values_{name.replace('.', '_')}": x for name, x in held.items()}
        outputs = session.run(input_ids=torch.tensor(tokens), **feeds)
        with torch.no_grad():
            expected = model(torch.tensor(tokens), past_key_values=cache, use_cache=True)
        assert_close(outputs["logits"], expected.logits)
        held = {name: outputs[f"past_key_values.{name}"] for name in names}
        assert_close(held["key_cache.1"], cache.layers[1].keys)
        assert_close(held["value_cache.0"], cache.layers[0].values)


def test_a_growing_cache_that_torch_does_not_know_is_explained() -> None:
    model, ids = decoder("llama"), torch.tensor([[5, 9, 2]])
    with pytest.raises(ExportError, match="register_dynamic_cache_export_support"):
        coreai_onnx.convert(model, (), {"input_ids": ids, "past_key_values": cache_of(model, ids)})
