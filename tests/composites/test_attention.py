"""Attention's reference against torch's own, and against a double loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx.composites.attention import position_mask, scaled_dot_product_attention
from coreai_onnx.composites.caches import kv_cache_update
from coreai_onnx.lower.nodes.composite_checks import CompositeCallError
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]


def double_loop(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *,
    is_causal: int = 0,
    window_size: int = 0,
    causal_alignment: str = "lower_right",
    softcap: float = 0.0,
) -> torch.Tensor:
    """Attention one score at a time."""
    (B, H, T, D), S = query.shape, key.shape[2]
    result = torch.zeros(B, H, T, value.shape[-1], dtype=query.dtype)
    for b, h, t in ((b, h, t) for b in range(B) for h in range(H) for t in range(T)):
        k, v = key[b, h // (H // key.shape[1])], value[b, h // (H // value.shape[1])]
        position = t + (S - T if causal_alignment == "lower_right" else 0)
        exponentials = []
        for s in range(S):
            score = float(query[b, h, t] @ k[s]) / math.sqrt(D)
            if softcap:
                score = softcap * math.tanh(score / softcap)
            if mask is not None:
                entry = mask.expand(B, H, T, S)[b, h, t, s]
                score = (
                    (score if entry else -math.inf)
                    if mask.dtype == torch.bool
                    else score + float(entry)
                )
            else:
                behind = position - s
                far = window_size and abs(behind) >= window_size
                if far or (is_causal and behind < 0):
                    score = -math.inf
            exponentials.append(math.exp(score))
        total = sum(exponentials) + (math.exp(float(sinks[h])) if sinks is not None else 0.0)
        for s, e in enumerate(exponentials):
            result[b, h, t] += (e / total if total else 0.0) * v[s]
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gives_torchs_attention(dtype: torch.dtype) -> None:
    q, k, v = tensors((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6), dtype=dtype)
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double()).to(dtype)
    wide = scaled_dot_product_attention(q, k, v)
    assert_close(wide, expected)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_groups_heads_as_torch_does(heads: int) -> None:
    q, k, v = tensors((2, 4, 5, 8), (2, heads, 7, 8), (2, heads, 7, 8))
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert_close(scaled_dot_product_attention(q, k, v), expected)


def test_key_and_value_may_be_grouped_differently() -> None:
    q, k, v = tensors((1, 4, 3, 8), (1, 2, 6, 8), (1, 1, 6, 5))
    assert_close(scaled_dot_product_attention(q, k, v), double_loop(q, k, v))


@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (1, 1, 5, 7), (5, 7), (2, 1, 1, 7)], ids=str)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_as_torch_has_them(shape: tuple[int, ...], kind: str) -> None:
    q, k, v = tensors((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
    mask = torch.randn(shape, dtype=torch.float64)
    if kind == "bool":
        mask = mask > -0.5
        mask[..., 0] = True
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert_close(scaled_dot_product_attention(q, k, v, mask), expected)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_row_that_attends_to_nothing_is_zero(kind: str) -> None:
    q, k, v = tensors((1, 2, 3, 8), (1, 2, 4, 8), (1, 2, 4, 8))
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    if kind == "float":
        mask = torch.where(mask, 0.0, -math.inf).double()
    actual = scaled_dot_product_attention(q, k, v, mask)
    assert_close(actual, F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    assert not actual[:, :, 1].any()


def test_a_given_mask_is_used_alone() -> None:
    q, k, v = tensors((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8))
    mask = torch.rand(4, 4) > 0.3
    actual = scaled_dot_product_attention(q, k, v, mask, is_causal=1, window_size=1)
    assert_close(actual, double_loop(q, k, v, mask))


def test_causal_upper_left_is_torchs() -> None:
    q, k, v = tensors((1, 2, 3, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    actual = scaled_dot_product_attention(q, k, v, is_causal=1, causal_alignment="upper_left")
    assert_close(actual, F.scaled_dot_product_attention(q, k, v, is_causal=True))


@pytest.mark.parametrize("sinks", [False, True], ids=["plain", "sinks"])
@pytest.mark.parametrize("lengths", [(4, 4), (2, 6), (1, 5), (5, 3)], ids=str)
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"is_causal": 1},
        {"window_size": 2},
        {"is_causal": 1, "window_size": 1},
        {"is_causal": 1, "window_size": 3},
        {"is_causal": 1, "window_size": 3, "causal_alignment": "upper_left"},
        {"window_size": 2, "causal_alignment": "upper_left"},
        {"softcap": 1.5, "is_causal": 1},
    ],
    ids=str,
)
def test_positions_windows_and_sinks(
    attributes: dict[str, Any], lengths: tuple[int, int], sinks: bool
) -> None:
    T, S = lengths
    q, k, v, column = tensors((1, 4, T, 8), (1, 2, S, 8), (1, 2, S, 8), (4,))
    extra = column if sinks else None
    actual = scaled_dot_product_attention(q, k, v, None, extra, **attributes)
    assert_close(actual, double_loop(q, k, v, None, extra, **attributes))


def test_scale_replaces_the_default() -> None:
    q, k, v = tensors((1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 3, 8))
    expected = F.scaled_dot_product_attention(q, k, v, scale=0.3)
    assert_close(scaled_dot_product_attention(q, k, v, scale=0.3), expected)


def test_position_mask_counts_the_token_itself() -> None:
    mask = position_mask(2, 4, 1, 2, "lower_right")
    assert mask is not None
    assert mask.tolist() == [[False, True, True, False], [False, False, True, True]]
    assert position_mask(2, 4, 0, 0, "lower_right") is None


def test_one_position_for_all() -> None:
    cache, update = torch.randn(2, 3, 9, 4), torch.randn(2, 3, 2, 4)
    expected = cache.clone()
    expected[:, :, 5:7] = update
    before = cache.clone()
    assert_close(kv_cache_update(cache, update, torch.tensor(5)), expected)
    assert_close(cache, before)
    columns = torch.arange(5, 7)
    assert_close(before.index_copy(2, columns, update), expected)  # as a StaticCache writes


def test_a_position_per_row() -> None:
    cache, update = torch.zeros(2, 1, 4, 1), torch.ones(2, 1, 2, 1)
    actual = kv_cache_update(cache, update, torch.tensor([0, 2]))
    assert actual[:, 0, :, 0].tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize("position", [torch.tensor(3), torch.tensor([0, -1])])
def test_a_place_outside_is_an_error(position: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        kv_cache_update(torch.zeros(2, 1, 4, 1), torch.ones(2, 1, 2, 1), position)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ((2, 3, 10, 4), "update has 10 tokens, cache 9 places"),
        ((3, 2, 4), "update must have rank 4, got 3"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(update: tuple[int, ...], message: str) -> None:
    with pytest.raises(CompositeCallError, match=message):
        Case("kv_cache_update", ((2, 3, 9, 4), update, ()), {}, {2: torch.int64}).model(
            torch.float32, dynamic=False
        )
