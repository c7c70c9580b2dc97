"""Requests: how tokens are chosen, and why replies end."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
    TopKLogitsWarper,
)

from coreai_onnx.huggingface.generation.paged_stream import CacheRow
from coreai_onnx.huggingface.generation.replies import Channel
from coreai_onnx.huggingface.generation.requests import Choice, Request, choice

SCORES = torch.tensor([[0.0, 3.0, 2.0, 1.0]])


def request(length: int = 4, eos: int = 9, processors: Any = (), **settings: Any) -> Request:
    criteria = StoppingCriteriaList(
        [MaxLengthCriteria(length), EosTokenCriteria(torch.tensor([eos]))]
    )
    config = GenerationConfig(max_length=length, **settings)
    chosen = choice(None, None, LogitsProcessorList(processors), criteria, config)  # type: ignore[arg-type]
    assert isinstance(chosen, Choice)
    random = torch.Generator()
    random.manual_seed(1)
    ids = torch.tensor([[5, 7]])
    return Request(Channel(), chosen, [5, 7], length, random, None, CacheRow([5, 7], [0], 0), ids)


def test_a_reply_ends_by_its_length_or_by_a_token() -> None:
    longer = request()
    assert longer.choose(SCORES) == ""
    assert longer.choose(SCORES) == "length"
    assert longer.ids.tolist() == [[5, 7, 1, 1]]
    assert [longer.channel.get(), longer.channel.get()] == [1, 1]
    assert longer.row is not None
    assert longer.row.last == 1
    assert request(eos=1).choose(SCORES) == "stop"


def test_samples_are_those_of_torch() -> None:
    sampled = request(64, processors=[TopKLogitsWarper(2)], do_sample=True)
    tokens = []
    for _ in range(40):
        sampled.choose(SCORES)
        tokens.append(sampled.channel.get())
    random = torch.Generator()
    random.manual_seed(1)
    two = SCORES.masked_fill(SCORES < 2, -torch.inf).softmax(-1)
    assert tokens == [int(torch.multinomial(two, 1, generator=random)) for _ in range(40)]
    assert set(tokens) == {1, 2}
