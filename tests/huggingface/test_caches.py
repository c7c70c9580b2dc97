"""Caches of decoders as tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from coreai_onnx.errors import ConversionError, ModelSourceError
from coreai_onnx.huggingface.caches import (
    Slot,
    cache_of,
    cache_parameter,
    slots_of,
    slots_of_cache,
    states_in_cache,
    tensors_of,
)
from tests.models.decoders import SHAPE
from tests.models.generators import GENERATORS, RWKV
from tests.support.huggingface_folders import llama
from tests.support.tolerances import assert_close

PARTS = [f"{layer}.{kind}" for layer in (0, 1) for kind in ("key", "value")]


def test_names_and_shapes_of_keys_and_values() -> None:
    slots = slots_of(llama())
    assert [slot.past for slot in slots] == [f"past_key_values.{part}" for part in PARTS]
    assert [slot.present for slot in slots] == [f"present.{part}" for part in PARTS]
    assert {slot.shape for slot in slots} == {(2, 0, 16)}
    assert slots[0].example(3).shape == (3, 2, 4, 16)
    compressed = slots_of(GENERATORS["deepseek_v3"].module())
    assert [slot.shape for slot in compressed[:2]] == [(1, 0, 32), (1, 0, 8)]


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("mamba2", ["past_conv.0", "past_ssm.0"]),
        ("qwen3_next", ["past_conv.0", "past_recurrent.0", "past_key_values.1.key"]),
        ("lfm2", ["past_conv.0", "past_key_values.1.key", "past_key_values.1.value"]),
        ("mamba", ["past_conv.0", "past_ssm.0", "past_conv.1", "past_ssm.1"]),
        ("recurrent_gemma", ["past_conv.0", "past_recurrent.0", "past_conv.1"]),
    ],
)
def test_names_of_recurrent_states(name: str, names: list[str]) -> None:
    slots = slots_of(GENERATORS[name].module())
    assert [slot.past for slot in slots][: len(names)] == names
    assert slots[0].present == "present_conv.0"


def test_layers_with_a_window_keep_everything() -> None:
    model = GENERATORS["mistral"].module()
    slots = slots_of(model)
    cache = cache_of(slots, [slot.example(1, 20) for slot in slots])
    with torch.no_grad():
        model(torch.tensor([[5]]), past_key_values=cache, use_cache=True)
    assert [tuple(x.shape) for x in tensors_of(cache, slots)] == [(1, 2, 21, 16)] * 4


@pytest.mark.parametrize("name", ["llama", "mamba2", "qwen3_next", "lfm2"])
def test_a_cache_continues_a_text(name: str) -> None:
    """From an empty one, whose states are zeros; the tensors that go in are not written to."""
    model, ids = GENERATORS[name].module(), torch.tensor([[5, 9, 17, 33, 8]])
    slots, parameter = slots_of(model), cache_parameter(model)
    past = [slot.example(1, 0) for slot in slots]
    logits = []
    for start, end in ((0, 3), (3, 4), (4, 5)):
        cache, before = cache_of(slots, past), [x.clone() for x in past]
        given: dict[str, Any] = {parameter: cache, "use_cache": True}
        given["attention_mask"] = torch.ones(1, end, dtype=torch.int64)
        with torch.no_grad():
            logits.append(model(ids[:, start:end], **given).logits)
        if start == 0:
            assert_close(past, before)
        past = list(tensors_of(cache, slots))
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
    assert_close(torch.cat(logits, dim=1), whole)


def test_slots_of_an_encoder() -> None:
    cache = transformers.DynamicCache()
    cache.update(torch.zeros(2, 4, 6, 8), torch.zeros(2, 4, 6, 3), 0)
    slots = slots_of_cache(cache, "encoder.")
    assert [slot.past for slot in slots] == [
        "past_key_values.0.encoder.key", "past_key_values.0.encoder.value",
    ]  # fmt: skip
    assert slots[1] == Slot(0, "value", (4, 0, 3), torch.float32, "encoder.")


def test_caches_that_are_refused() -> None:
    layer = transformers.cache_utils.LinearAttentionLayer(number_of_states=2)
    cache = transformers.DynamicCache()
    cache.layers.append(layer)
    with pytest.raises(ConversionError, match="layer 0 keeps 2 states"):
        slots_of_cache(cache)


def test_recurrent_gemma_keeps_its_states_in_the_cache() -> None:
    """Also after several tokens that follow others, where transformers begins anew."""
    model, ids = GENERATORS["recurrent_gemma"].module(), torch.tensor([[5, 9, 17, 33, 8]])
    cache, logits = transformers.DynamicCache(config=model.config), []
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        with states_in_cache(model):
            for start, end in ((0, 2), (2, 4), (4, 5)):
                places = torch.arange(start, end)[None]
                given = {"position_ids": places, "past_key_values": cache, "use_cache": True}
                logits.append(model(ids[:, start:end], **given).logits)
    assert_close(torch.cat(logits, dim=1), whole)
    assert model.model.layers[0].temporal_block.conv1d_state is None


def test_states_of_rwkv() -> None:
    """Zeros are those of an empty text, and the tensors that go in are not written to."""
    model, ids = RWKV.module(), torch.tensor([[5, 9, 17]])
    slots = slots_of(model)
    assert [slot.past for slot in slots] == [f"past_state.{i}" for i in range(5)]
    zeros = [slot.example(1) for slot in slots]
    states = cache_of(slots, zeros)
    with torch.no_grad():
        logits = model(ids, state=states, use_cache=True).logits
        assert_close(logits, model(ids, use_cache=True).logits)
    assert not any(bool(x.any()) for x in zeros)
    assert all(bool(x.any()) for x in tensors_of(states, slots))


def test_models_without_a_cache_and_with_one_of_their_own() -> None:
    assert slots_of(GENERATORS["openai_gpt"].module()) == []
    with pytest.raises(ConversionError, match="OpenAIGPTLMHeadModel has no cache"):
        slots_of(GENERATORS["openai_gpt"].module(), is_static=True)
    config = transformers.MiniMaxConfig(
        **{**SHAPE, "num_local_experts": 2, "head_dim": 16},
        layer_types=["linear_attention", "full_attention"],
    )
    with pytest.raises(ModelSourceError, match=r"cache: MiniMax uses cache of its own .*$"):
        slots_of(transformers.MiniMaxForCausalLM(config).eval())
    xlstm = transformers.xLSTMConfig(hidden_size=64, num_hidden_layers=1, num_heads=4)
    with pytest.raises(ConversionError, match="keeps its states in a xLSTMCache, a class of its"):
        slots_of(transformers.xLSTMForCausalLM(xlstm).eval())
