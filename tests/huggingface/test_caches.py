"""Caches of decoders as tensors."""

from __future__ import annotations

import pytest
import torch
import transformers

from coreai_onnx.errors import ConversionError
from coreai_onnx.huggingface.caches import CacheLayer, cache_of, layers_of, tensors_of
from tests.huggingface_folders import llama
from tests.models.generators import GENERATORS
from tests.models.mixtures import STATEFUL
from tests.tolerances import assert_close


def test_shapes_of_keys_and_values() -> None:
    assert layers_of(llama()) == [CacheLayer(2, 16, 16)] * 2
    assert layers_of(GENERATORS["deepseek_v3"].module())[0] == CacheLayer(1, 32, 8)


def test_layers_with_a_window_keep_everything() -> None:
    model = GENERATORS["mistral"].module()
    past = [torch.zeros(1, layer.heads, 20, 16) for layer in layers_of(model) for _ in range(2)]
    cache = cache_of(past)
    with torch.no_grad():
        model(torch.tensor([[5]]), past_key_values=cache, use_cache=True)
    assert [tuple(x.shape) for x in tensors_of(cache)] == [(1, 2, 21, 16)] * 4


def test_a_cache_is_what_the_model_returns() -> None:
    model, ids = llama(), torch.tensor([[5, 9, 17, 33]])
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :3], use_cache=True).past_key_values
        cache = cache_of(list(tensors_of(first)))
        last = model(ids[:, 3:], past_key_values=cache, use_cache=True).logits
    assert_close(last[:, 0], whole[:, 3])
    assert isinstance(cache, transformers.DynamicCache)
    assert cache.get_seq_length() == 4


def test_recurrent_states_are_refused() -> None:
    model = next(one for one in STATEFUL if one.name == "qwen3_next").module()
    with pytest.raises(ConversionError, match="layers keep a recurrent state"):
        layers_of(model)
