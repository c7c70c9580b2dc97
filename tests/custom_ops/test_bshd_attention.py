"""Attention with heads behind tokens: the bits of attention between transposes."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.attention import SCALED_DOT_PRODUCT_ATTENTION_BSHD as COMPOSITE
from tests.custom_ops.single_op import DTYPES, double, run_op
from tests.support.tolerances import assert_close

OP = COMPOSITE.name
SHAPES = [
    # batch, queries, keys, heads, key heads, dim, value_dim
    (2, 197, 197, 6, 6, 64, 64),
    (3, 7, 20, 4, 2, 8, 5),
    (2, 1, 19, 8, 2, 64, 64),
    (1, 70, 33, 4, 1, 33, 17),
]


def inputs_of(shape, dtype=torch.float32):
    B, T, S, H, K, D, E = shape
    return [torch.randn(*size).to(dtype) for size in ((B, T, H, D), (B, S, K, D), (B, S, K, E))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", ["", "bool", "bias", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_the_reference(kernels, shape, mask, dtype):
    inputs = inputs_of(shape, dtype)
    if mask == "bool":
        attn_mask = torch.rand(shape[0], 1, shape[1], shape[2]) > 0.3
        attn_mask[0, 0, 0] = False
        inputs.append(attn_mask)
    elif mask == "bias":
        inputs.append(torch.randn(shape[3], shape[1], shape[2]).to(dtype))
    attributes = {"is_causal": int(mask == "causal"), "scale": 0.375}
    actual = run_op(kernels, OP, inputs, threads=2, **attributes)
    expected = COMPOSITE.reference(*(double(x) for x in inputs), **attributes)
    assert_close(actual, expected.to(dtype))


# Heads that share keys may take another path if they have more than one query.
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2]], ids=str)
def test_gives_the_bits_of_attention_between_transposes(kernels, shape):
    inputs = inputs_of(shape)
    turned = [x.transpose(1, 2).contiguous() for x in inputs]
    expected = run_op(kernels, "scaled_dot_product_attention", turned)
    assert run_op(kernels, OP, inputs).equal(expected.transpose(1, 2))
