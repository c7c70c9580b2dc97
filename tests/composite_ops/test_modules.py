"""The modules: the peer's constructors and forwards, and errors that say what is wrong."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composite_ops import SDPA, RMSNorm, RMSNormImpl, RoPE
from tests.tolerances import assert_close

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
    inputs[name] = torch.randn(2, 3, 8)
    with pytest.raises(RuntimeError, match=rf"{name} must have rank 4, has shape \(2, 3, 8\)"):
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
