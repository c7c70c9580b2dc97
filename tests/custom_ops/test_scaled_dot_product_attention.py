"""Attention through onnxruntime against its declared reference in double."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coreai_onnx.composites.attention import SCALED_DOT_PRODUCT_ATTENTION as COMPOSITE
from tests.custom_ops.single_op import DTYPES, double, run_op
from tests.support.tolerances import assert_close

OP = "scaled_dot_product_attention"
SHAPES = [
    # batch, heads, key heads, value heads, queries, keys, head_dim, value_dim
    (2, 4, 2, 4, 7, 9, 8, 5),
    (1, 8, 2, 2, 1, 300, 64, 64),
    (1, 2, 1, 1, 70, 130, 33, 17),
    (1, 3, 3, 3, 65, 65, 16, 16),
]
ATTRIBUTES = [
    {},
    {"scale": 0.25},
    {"is_causal": 1},
    {"window_size": 3},
    {"window_size": 20, "is_causal": 1},
    {"is_causal": 1, "causal_alignment": "upper_left"},
    {"window_size": 4, "causal_alignment": "upper_left"},
    {"softcap": 2.0, "is_causal": 1},
]


def qkv(shape, dtype=torch.float32):
    B, Hq, Hk, Hv, Tq, Tk, D, Dv = shape
    sizes = ((B, Hq, Tq, D), (B, Hk, Tk, D), (B, Hv, Tk, Dv))
    return [torch.randn(size).to(dtype) for size in sizes]


def expected(inputs, attributes, dtype):
    return COMPOSITE.reference(*(double(x) for x in inputs), **attributes).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_the_reference(kernels, shape, attributes, dtype):
    inputs = qkv(shape, dtype)
    actual = run_op(kernels, OP, inputs, threads=2, **attributes)
    assert_close(actual, expected(inputs, attributes, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("mask", ["", "bool", "own", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masks_and_sinks(kernels, shape, mask, sinks, dtype):
    batch, heads, queries, keys = shape[0], shape[1], shape[4], shape[5]
    attn_mask = None
    if mask == "bool":
        attn_mask = torch.rand(batch, 1, queries, keys) > 0.4
        attn_mask[0, 0, 0] = False  # attends to nothing
    elif mask:
        attn_mask = torch.randn(heads, queries, keys).to(dtype if mask == "own" else torch.float32)
    sink = torch.randn(heads).to(dtype) if sinks else None
    inputs = [*qkv(shape, dtype), attn_mask, sink]
    actual = run_op(kernels, OP, inputs, threads=2)
    assert_close(actual, expected(inputs, {}, dtype))


@pytest.mark.parametrize(
    "mask_shape", [(), (9,), (1,), (7, 1), (7, 9), (4, 1, 1), (2, 1, 1, 9), (2, 4, 7, 9)]
)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_broadcast_from_the_right(kernels, mask_shape, kind):
    mask = torch.randn(mask_shape)
    inputs = [*qkv(SHAPES[0]), mask > 0 if kind == "bool" else mask]
    assert_close(run_op(kernels, OP, inputs), expected(inputs, {}, torch.float32))


def test_a_given_mask_is_used_alone(kernels):
    inputs = [*qkv(SHAPES[0]), torch.ones(7, 9, dtype=torch.bool)]
    actual = run_op(kernels, OP, inputs, is_causal=1, window_size=2)
    assert_close(actual, expected(inputs, {}, torch.float32))


@pytest.mark.parametrize("mask_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masks_and_sinks_of_any_float_type(kernels, dtype, mask_dtype):
    inputs = [
        *qkv(SHAPES[0], dtype),
        torch.randn(7, 9).to(mask_dtype),
        torch.randn(4).to(mask_dtype),
    ]
    assert_close(run_op(kernels, OP, inputs), expected(inputs, {}, dtype))


@pytest.mark.parametrize("masked", ["bool", "-inf"])
@pytest.mark.parametrize("queries", [1, 40])
def test_a_fully_masked_row_is_zero_as_in_torch(kernels, masked, queries):
    q, k, v = qkv((1, 2, 2, 2, queries, 100, 8, 8))
    mask = torch.rand(queries, 100) > 0.5
    mask[0] = False
    if masked == "-inf":
        mask = torch.zeros(queries, 100).masked_fill(~mask, float("-inf"))
    actual = run_op(kernels, OP, [q, k, v, mask])
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert actual[:, :, 0].abs().max() == 0
    assert_close(actual, wanted)


@pytest.mark.parametrize("sizes", list(itertools.product((0, 1, 2), repeat=2)))
def test_empty(kernels, sizes):
    queries, keys = sizes
    inputs = qkv((1, 2, 2, 2, queries, keys, 4, 3))
    actual = run_op(kernels, OP, inputs)
    assert actual.shape == (1, 2, queries, 3)
    assert_close(actual, expected(inputs, {}, torch.float32))


@pytest.mark.parametrize("shape", [(0, 2, 2, 2, 3, 3, 4, 4), (1, 0, 0, 0, 3, 3, 4, 4)])
def test_empty_batch_or_heads(kernels, shape):
    assert run_op(kernels, OP, qkv(shape)).numel() == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty_head_and_value_dims(kernels, dtype):
    assert run_op(kernels, OP, qkv((1, 2, 2, 2, 3, 5, 4, 0), dtype)).shape == (1, 2, 3, 0)
    q, k, v = qkv((1, 2, 2, 2, 30, 5, 0, 4), dtype)
    # All scores are zero: the mean of the values.
    mean = v.double().mean(2, keepdim=True).expand(1, 2, 30, 4)
    assert_close(run_op(kernels, OP, [q, k, v]), mean.to(dtype))


@settings(max_examples=60)
@given(
    sizes=st.tuples(*[st.integers(1, n) for n in (2, 3, 80, 200, 20, 20)]),
    groups=st.sampled_from([(1, 1), (2, 1), (2, 2), (4, 2), (6, 3)]),
    attributes=st.sampled_from(ATTRIBUTES),
    dtype=st.sampled_from(DTYPES),
)
def test_random_shapes(kernels, sizes, groups, attributes, dtype):
    batch, heads, queries, keys, head_dim, value_dim = sizes
    shape = (batch, heads * groups[0], heads, heads * groups[1], queries, keys, head_dim, value_dim)
    inputs = qkv(shape, dtype)
    actual = run_op(kernels, OP, inputs, **attributes)
    assert_close(actual, expected(inputs, attributes, dtype))


def test_unknown_rank_at_load(kernels):
    inputs = qkv(SHAPES[0])
    actual = run_op(kernels, OP, inputs, rank_known=False)
    assert_close(actual, expected(inputs, {}, torch.float32))


def test_a_window_as_large_as_an_integer_can_be(kernels):
    inputs = qkv(SHAPES[0])
    for causal in (0, 1):
        actual = run_op(kernels, OP, inputs, window_size=2**63 - 1, is_causal=causal)
        assert_close(actual, expected(inputs, {"is_causal": causal}, torch.float32))


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([ones(2, 3, 4)] * 3, {}, r"must have rank 4: query \[2, 3, 4\]"),
        ([ones(2, 2, 3, 4), ones(1, 2, 3, 4), ones(1, 2, 3, 4)], {}, "same batch size: query"),
        ([ones(1, 2, 3, 4), ones(1, 2, 3, 5), ones(1, 2, 3, 4)], {}, "same last size: query"),
        ([ones(1, 2, 3, 4), ones(1, 2, 3, 4), ones(1, 2, 5, 4)], {}, "same length: query"),
        ([ones(1, 3, 3, 4), ones(1, 2, 3, 4), ones(1, 3, 3, 4)], {}, "must be a multiple"),
        ([ones(1, 3, 3, 4), ones(1, 3, 3, 4), ones(1, 2, 3, 4)], {}, "must be a multiple"),
        ([ones(1, 3, 3, 4), ones(1, 0, 3, 4), ones(1, 3, 3, 4)], {}, "must be a multiple"),
        (
            [ones(1, 1, 3, 4)] * 3 + [ones(3, 4)],
            {},
            r"attn_mask of shape \[3, 4\] does not broadcast to the scores' shape \[1, 1, 3, 3\]",
        ),
        (
            [ones(1, 1, 3, 4)] * 3 + [ones(1, 1, 1, 3, 3)],
            {},
            r"attn_mask of shape \[1, 1, 1, 3",
        ),
        (
            [ones(1, 1, 3, 4)] * 3 + [ones(3, 3, dtype=torch.int64)],
            {},
            "attn_mask is int64, expected bool, float",
        ),
        ([ones(1, 1, 3, 4)] * 3 + [None, ones(2)], {}, r"sinks of shape \[2\] must have one value"),
        ([ones(1, 1, 3, 4)] * 3 + [None, ones(1, 1)], {}, r"sinks of shape \[1, 1\]"),
        (
            [ones(1, 1, 3, 4)] * 3 + [None, ones(1, dtype=torch.bool)],
            {},
            "sinks is bool, expected float",
        ),
        ([ones(1, 1, 3, 4)] * 3, {"causal_alignment": "left"}, 'causal_alignment is "left"'),
        ([ones(1, 1, 3, 4)] * 3, {"scale": 1}, "attribute scale is 1, expected a float"),
        ([ones(1, 1, 3, 4)] * 3, {"is_causal": 1.0}, "attribute is_causal is 1, expected an int"),
        (
            [ones(1, 1, 3, 4)] * 3,
            {"softcap": float("nan")},
            "attribute softcap is nan, expected a number",
        ),
    ],
)
def test_refusals_name_the_op_and_the_values(kernels, inputs, attributes, message):
    with pytest.raises(Exception, match=rf"{OP}: .*{message}"):
        run_op(kernels, OP, inputs, **attributes)
