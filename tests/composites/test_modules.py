"""The modules: coreai-torch's constructors and forwards, and errors that say what is wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from transformers import Gemma3TextConfig, GptOssConfig, LlamaConfig, Qwen3Config
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from coreai_onnx.composites import SDPA, RMSNorm, RMSNormImpl, RoPE
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_module_keeps_the_dtype(dtype: torch.dtype) -> None:
    x = torch.randn(1, 2, 3, 8).to(dtype)
    for result in (
        RMSNorm(8).to(dtype)(x),
        RMSNormImpl()(x, torch.ones(8)),
        RoPE()(x),
        SDPA(is_causal=True)(x, x, x),
    ):
        assert result.dtype == dtype
        assert result.shape == x.shape


def test_rms_norm_owns_its_scale() -> None:
    norm = RMSNorm(8, eps=1e-3)
    assert [n for n, _ in norm.named_parameters()] == ["weight"]
    assert_close(norm.weight.detach(), torch.ones(8))
    x = torch.randn(2, 8)
    assert_close(norm(x).detach(), F.rms_norm(x, (8,), eps=1e-3))
    assert RMSNorm(8, n_heads=4).weight.shape == (4, 1, 8)
    assert norm(torch.randn(8)).shape == (8,)


def test_rms_norm_needs_an_axis() -> None:
    with pytest.raises(RuntimeError, match="rms_norm: input must have at least one axis"):
        RMSNormImpl()(torch.tensor(1.0), torch.ones(1))


def test_attention_keeps_its_attributes() -> None:
    attention = SDPA(0.5, True, 4, 2.0)
    assert (attention.scale, attention.is_causal, attention.window_size) == (0.5, True, 4)
    assert SDPA().scale is None
    q, kv = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8)
    expected = F.scaled_dot_product_attention(q, kv, kv, enable_gqa=True)
    assert_close(SDPA()(q, kv, kv), expected)


def test_attention_says_which_heads_do_not_match() -> None:
    q, k, v = torch.randn(1, 4, 3, 8), torch.randn(1, 3, 5, 8), torch.randn(1, 2, 5, 8)
    with pytest.raises(
        RuntimeError, match="query has 4 heads, not a multiple of the 3 heads of key"
    ):
        SDPA()(q, k, v)
    with pytest.raises(RuntimeError, match="of the 3 heads of value"):
        SDPA()(q, v, k)


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_attention_says_what_has_the_wrong_rank(name: str) -> None:
    inputs = {n: torch.randn(1, 2, 3, 8) for n in ("query", "key", "value")}
    inputs[name] = torch.randn(3, 8)
    needed = rf"{name} must be \[..., heads, tokens, lanes\], has shape \(3, 8\)"
    with pytest.raises(RuntimeError, match=needed):
        SDPA()(**inputs)


def test_attention_says_which_lengths_do_not_match() -> None:
    q, k, v = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 4, 8)
    with pytest.raises(RuntimeError, match="key has 5 tokens, value 4"):
        SDPA()(q, k, v)
    with pytest.raises(RuntimeError, match="query has 8 lanes, key 6"):
        SDPA()(q, torch.randn(1, 2, 5, 6), k)


def test_attention_says_how_many_sinks_it_needs() -> None:
    q = torch.randn(1, 4, 3, 8)
    with pytest.raises(RuntimeError, match=r"sinks must have shape \(4,\), has \(3,\)"):
        SDPA()(q, q, q, sinks=torch.zeros(3))


@pytest.mark.parametrize("dims", [3, 0, -2])
def test_rope_needs_an_even_number_of_lanes(dims: int) -> None:
    with pytest.raises(RuntimeError, match=f"must be even and positive, is {dims}"):
        RoPE(dims=dims)(torch.randn(1, 2, 3, 8))


def test_rope_of_an_odd_head_says_so() -> None:
    with pytest.raises(RuntimeError, match="must be even and positive, is 7"):
        RoPE()(torch.randn(1, 2, 3, 7))


@pytest.mark.parametrize("shape", [(8,), (2, 8), (1, 1, 2, 3, 8)], ids=str)
def test_rope_says_what_rank_it_needs(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="rope: input must have rank 3 or 4"):
        RoPE()(torch.randn(shape))


def test_rope_takes_offsets_as_numbers_and_tensors() -> None:
    x = torch.randn(1, 2, 3, 8)
    expected = RoPE()(x, position_ids=torch.tensor([[5, 6, 7]]))
    assert_close(RoPE()(x, offset=5), expected)
    assert_close(RoPE()(x, offset=torch.tensor([5])), expected)
    assert RoPE(2, 10).scale == 2.0


# ---------------------------------------------------------------------- against Hugging Face
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("norm", [llama.LlamaRMSNorm, qwen3.Qwen3RMSNorm, gpt_oss.GptOssRMSNorm])
def test_norms_of_llama_qwen_and_gpt_oss(norm: type, dtype: torch.dtype) -> None:
    theirs = norm(16, eps=1e-5).to(dtype)
    torch.nn.init.normal_(theirs.weight)
    x = torch.randn(2, 3, 5, 16).to(dtype)
    scale = theirs.weight.float() if norm is gpt_oss.GptOssRMSNorm else theirs.weight
    assert_close(RMSNormImpl(1e-5)(x, scale).detach(), theirs(x).detach())


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_the_norm_of_gemma3_has_a_wide_scale(dtype: torch.dtype) -> None:
    theirs = gemma3.Gemma3RMSNorm(16, eps=1e-5)
    torch.nn.init.normal_(theirs.weight)
    x = torch.randn(2, 3, 16).to(dtype)
    assert_close(RMSNormImpl(1e-5)(x, 1.0 + theirs.weight).detach(), theirs(x).detach())


ROTARY = {
    "llama": (llama, llama.LlamaRotaryEmbedding, LlamaConfig, 500000.0),
    "qwen3": (qwen3, qwen3.Qwen3RotaryEmbedding, Qwen3Config, 1000000.0),
}
TOKENS = torch.tensor([[0, 1, 2, 3, 4], [9, 10, 11, 40, 41]])


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_embeddings_of_llama_and_qwen3(name: str) -> None:
    home, made, configured, base = ROTARY[name]
    parameters = {"rope_type": "default", "rope_theta": base}
    shape = {"hidden_size": 32, "num_attention_heads": 4, "head_dim": 8}
    theirs = made(configured(**shape, rope_parameters=parameters))
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    expected = home.apply_rotary_pos_emb(q, k, *theirs(q, TOKENS))
    rotary = RoPE(base=base)
    assert_close([rotary(x, position_ids=TOKENS) for x in (q, k)], list(expected))


@pytest.mark.parametrize("layer_type", ["sliding_attention", "full_attention"])
def test_rotary_embeddings_of_gemma3(layer_type: str) -> None:
    theirs = gemma3.Gemma3RotaryEmbedding(Gemma3TextConfig(head_dim=8, num_hidden_layers=6))
    base = theirs.config.rope_parameters[layer_type]["rope_theta"]
    q = torch.randn(2, 4, 5, 8)
    expected, _ = gemma3.apply_rotary_pos_emb(q, q, *theirs(q, TOKENS, layer_type))
    assert_close(RoPE(base=base)(q, position_ids=TOKENS), expected)


def test_the_rotary_embedding_of_gpt_oss_brings_its_frequencies() -> None:
    theirs = gpt_oss.GptOssRotaryEmbedding(GptOssConfig(head_dim=8))
    q = torch.randn(2, 4, 5, 8)
    cos, sin = theirs(q, TOKENS)
    expected, _ = gpt_oss.apply_rotary_pos_emb(q, q, cos, sin)
    assert_close(RoPE()(q, cos=cos.unsqueeze(1), sin=sin.unsqueeze(1)), expected)


@pytest.mark.parametrize("window", [0, 3])
def test_the_attention_of_gpt_oss_has_sinks(window: int) -> None:
    q, kv = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 9, 8)
    sinks = torch.randn(4)
    module = SimpleNamespace(num_key_value_groups=2, sinks=sinks, training=False)
    distance = torch.arange(5)[:, None] + 4 - torch.arange(9)
    hidden = (distance < 0) | (distance >= (window or 99))
    mask = torch.zeros(5, 9).masked_fill(hidden, float("-inf"))
    expected, _ = gpt_oss.eager_attention_forward(module, q, kv, kv, mask, scaling=0.3)
    actual = SDPA(0.3, is_causal=True, window_size=window)(q, kv, kv, sinks=sinks)
    assert_close(actual, expected.transpose(1, 2).contiguous())
