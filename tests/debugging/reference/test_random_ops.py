"""Operators that draw random numbers."""

from __future__ import annotations

import torch

from coreai_onnx.debugging.reference.random_ops import draws

ATEN = torch.ops.aten


def test_random_operators() -> None:
    x = torch.ones(2)
    assert draws(ATEN.rand_like.default, (x,), {})
    assert draws(ATEN.dropout.default, (x, 0.5, True), {})
    assert not draws(ATEN.dropout.default, (x, 0.5, False), {})
    assert not draws(ATEN.add.Tensor, (x, x), {})
    assert not draws(len, (x,), {})


def test_attention_draws_for_its_dropout_only() -> None:
    attention = ATEN.scaled_dot_product_attention.default
    q = torch.ones(1, 1, 2, 2)
    assert not draws(attention, (q, q, q), {})
    assert draws(attention, (q, q, q), {"dropout_p": 0.1})
    assert draws(attention, (q, q, q, None, 0.1), {})
