"""The parts of a model that ranks have, and the plans that say how layers are split."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from coreai_onnx.errors import ModelSourceError
from coreai_onnx.export.deferred import defer
from coreai_onnx.huggingface.checkpoints.sharding import shard
from tests.support.huggingface_folders import llama

TORCH_PLAN = {
    "model.embed_tokens": RowwiseParallel(),
    "model.layers.*.self_attn.q_proj": ColwiseParallel(),
    "model.layers.*.self_attn.k_proj": ColwiseParallel(),
    "model.layers.*.self_attn.v_proj": ColwiseParallel(),
    "model.layers.*.self_attn.o_proj": RowwiseParallel(),
    "model.layers.*.mlp.gate_proj": ColwiseParallel(),
    "model.layers.*.mlp.up_proj": ColwiseParallel(),
    "model.layers.*.mlp.down_proj": RowwiseParallel(),
    "lm_head": ColwiseParallel(output_layouts=Replicate()),
}


def weights(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters())


@pytest.mark.parametrize("ranks", [2, 4])
def test_parts_are_those_of_the_layers(ranks: int) -> None:
    model = llama(attention_bias=True, mlp_bias=True)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    parts = [weights(shard(model, ranks, rank)) for rank in range(ranks)]
    keys = model.config.num_key_value_heads
    for name, whole in weights(model).items():
        of_name = [part[name] for part in parts]
        if "norm" in name:
            assert all(part is whole for part in of_name)
        elif re.search("o_proj.bias|down_proj.bias", name):
            assert torch.stack([*of_name]).sum(0).equal(whole)
        elif re.search("o_proj|down_proj", name):
            assert torch.cat(of_name, 1).equal(whole)
        elif re.search("[kv]_proj", name) and keys < ranks:
            copies = ranks // keys
            assert torch.cat(of_name[::copies]).equal(whole)
            assert of_name[0].equal(of_name[copies - 1])
        elif re.search("embed|lm_head", name):
            assert torch.cat(of_name)[: len(whole)].equal(whole)
            assert not torch.cat(of_name)[len(whole) :].any()
        else:
            assert torch.cat(of_name).equal(whole)


def test_a_rank_has_its_share() -> None:
    model = llama(num_key_value_heads=4)
    total = sum(weight.numel() for weight in model.parameters())
    for ranks in (2, 4):
        part = sum(weight.numel() for weight in shard(model, ranks, 0).parameters())
        assert part <= total * (1 / ranks + 0.05)


def test_the_model_does_not_change() -> None:
    model, ids = llama(), torch.tensor([[1, 5, 9]])
    before = model(ids).logits
    part = shard(model, 2, 1)
    assert model(ids).logits.equal(before)
    assert (model.config.num_attention_heads, part.config.num_attention_heads) == (4, 2)
    assert part.config.head_dim == model.model.layers[0].self_attn.head_dim
    assert part(ids).logits.shape == before.shape


def test_tied_weights_stay_tied() -> None:
    part = shard(llama(tie_word_embeddings=True), 2, 0)
    assert part.lm_head.weight is part.model.embed_tokens.weight
    plan = {"model.embed_tokens": "embedding_rowwise", "lm_head": "rowwise"}
    with pytest.raises(ModelSourceError, match="lm_head is tied to a weight that the plan splits"):
        shard(llama(tie_word_embeddings=True), 2, 0, plan)


def test_styles_of_torch_are_those_of_transformers() -> None:
    model = llama()
    for rank in range(2):
        ours, theirs = (weights(shard(model, 2, rank, plan)) for plan in (TORCH_PLAN, None))
        assert ours.keys() == theirs.keys()
        assert all(ours[name].equal(theirs[name]) for name in ours)


def test_experts_have_halves_of_gate_and_projection() -> None:
    config = transformers.Qwen3MoeConfig(
        vocab_size=32, hidden_size=16, moe_intermediate_size=8, num_experts=3, head_dim=8,
        num_experts_per_tok=2, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    )  # fmt: skip
    model = transformers.Qwen3MoeForCausalLM(config)
    whole = model.model.layers[0].mlp.experts
    parts = [shard(model, 2, rank).model.layers[0].mlp.experts for rank in range(2)]
    for half, place in ((0, slice(0, 4)), (1, slice(4, 8))):
        gates = [part.gate_up_proj[:, place] for part in parts]
        assert torch.cat(gates, 1).equal(whole.gate_up_proj[:, 8 * half : 8 * half + 8])
    assert torch.cat([part.down_proj for part in parts], 2).equal(whole.down_proj)


@pytest.mark.parametrize(
    ("settings", "arguments", "said"),
    [
        ({}, (0, 0), "rank 0 of 0: there are 1 to 64 ranks"),
        ({}, (2, 2), "rank 2 of 2"),
        ({}, (3, 0), "q_proj: 4 heads cannot be split over 3 ranks"),
        ({}, (8, 0), "q_proj: 4 heads cannot be split over 8 ranks"),
        ({"intermediate_size": 33}, (2, 0), "33 cannot be split over 2 ranks"),
        ({}, (2, 0, {}), "has no plan for ranks"),
        ({}, (2, 0, {"lm_head": "sequence_parallel"}), "lm_head: the style 'sequence_parallel' mu"),
        ({}, (2, 0, {"model.layer.*": "colwise"}), "has none of model.layer"),
        ({}, (2, 0, {"model.norm": "colwise"}), "model.norm is a LlamaRMSNorm: only Linear and E"),
    ],
)
def test_what_cannot_be_split_is_refused(settings: Any, arguments: Any, said: str) -> None:
    with pytest.raises(ModelSourceError, match=re.escape(said)):
        shard(llama(**settings), *arguments)


def test_a_model_that_exceeds_the_memory_is_refused() -> None:
    model = llama()
    defer(model.lm_head.weight, model.lm_head.weight.detach())
    with pytest.raises(ModelSourceError, match="exceeds the memory"):
        shard(model, 2, 0)
