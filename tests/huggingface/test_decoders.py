"""The interface of exported decoders."""

from __future__ import annotations

import torch

from coreai_onnx.huggingface.caches import slots_of
from coreai_onnx.huggingface.decoders import Decoder, cache_dims
from tests.support.huggingface_folders import llama
from tests.support.tolerances import assert_close

FIRST = ["input_ids", "attention_mask", "position_ids"]
CACHE = ["0.key", "0.value", "1.key", "1.value"]


def test_dims_of_a_cache() -> None:
    key = slots_of(llama())[0]
    assert cache_dims(key) == {0: "batch_size", 2: "past_sequence_length"}
    assert cache_dims(key, None) == {0: "batch_size"}


def test_names_and_results() -> None:
    model = llama()
    decoder = Decoder(model)
    pasts = [f"past_key_values.{name}" for name in CACHE]
    assert decoder.input_names == [*FIRST, "logits_to_keep", *pasts]
    assert decoder.output_names == ["logits", *(f"present.{name}" for name in CACHE)]
    ids = torch.tensor([[5, 9, 17]])
    empty = [torch.zeros(1, 2, 0, 16)] * 4
    with torch.no_grad():
        first = ids, torch.ones_like(ids), torch.arange(3)[None]
        logits, *cache = decoder(*first, torch.tensor([2]), empty)
        assert_close(logits, model(ids).logits[:, 2:])
    assert [tuple(x.shape) for x in cache] == [(1, 2, 3, 16)] * 4


def test_examples_have_the_structure_of_their_dims() -> None:
    decoder = Decoder(llama().half())
    example, dims = decoder.example(torch.float16), decoder.dynamic_shapes()
    assert [type(x) for x in example] == [torch.Tensor] * 4 + [list]
    assert [len(x) for x in dims] == [2, 2, 2, 1, 4]
    assert example[4][0].dtype == torch.float16
