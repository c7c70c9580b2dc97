"""Decompositions that return what their op returns, where torch's own do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lower.checking import check

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_SEED = torch.Generator().manual_seed(0)
Q, K, V = (torch.randn(2, h, n, 8, generator=_SEED) for h, n in ((4, 5), (4, 7), (4, 7)))
MASK = torch.randn(1, 1, 5, 7, generator=_SEED)
MASK[0, 0, 1] = float("-inf")


@pytest.mark.parametrize(
    "options",
    [{}, {"scale": 0.3}, {"is_causal": True}, {"attn_mask": MASK}],
    ids=["plain", "scale", "causal", "mask"],
)
def test_flash_attention_returns_the_logsumexp(options: dict[str, Any]) -> None:
    check(lambda q, k, v: _FLASH(q, k, v, **options), Q, K, V)


def test_heads_are_grouped_and_16_bit_sums_are_float32() -> None:
    check(lambda q, k: _FLASH(q, k, k)[1], Q, K[:, :2])
    check(lambda q, k: _FLASH(q, k, k)[1], Q.bfloat16(), K.bfloat16())
    check(lambda q, k: _FLASH(q, k, k)[1], Q.double(), K.double())
