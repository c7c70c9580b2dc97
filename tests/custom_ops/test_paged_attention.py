"""Attention to blocks through onnxruntime against its declared reference in double."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.caches import PAGED_ATTENTION as COMPOSITE
from coreai_onnx.composites.caches import PAGED_ATTENTION_NBITS as CODED
from coreai_onnx.composites.caches import quantized_rows
from tests.custom_ops.single_op import DTYPES, double, run_op
from tests.custom_ops.test_determinism import run as deterministic
from tests.custom_ops.test_determinism import same
from tests.support.tolerances import assert_close

OP = "paged_attention"
SHAPES = [
    # batch, heads, key heads, value heads, queries, blocks, tokens, table length, dim, value_dim
    (3, 4, 2, 4, 7, 9, 4, 5, 8, 5),
    (2, 8, 2, 2, 1, 40, 16, 19, 64, 64),
    (2, 4, 1, 1, 70, 20, 8, 17, 33, 17),
    (1, 3, 3, 3, 65, 70, 1, 65, 16, 16),
]


def inputs_of(shape, dtype=torch.float32, index=torch.int64):
    B, H, K, V, T, N, P, W, D, E = shape
    table = torch.randint(0, N, (B, W)).to(index)
    pools = [torch.randn(N, P, *size).to(dtype) for size in ((K, D), (V, E))]
    return [torch.randn(B, H, T, D).to(dtype), *pools, table]


def expected(inputs, attributes, dtype):
    return COMPOSITE.reference(*(double(x) for x in inputs), **attributes).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("mask", ["", "bool", "bias"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_the_reference(kernels, shape, mask, sinks, dtype):
    inputs = inputs_of(shape, dtype, torch.int32 if sinks else torch.int64)
    batch, heads, queries, keys = shape[0], shape[1], shape[4], shape[6] * shape[7]
    attn_mask = None
    if mask == "bool":  # rows of several lengths, and one that attends to nothing
        attn_mask = torch.arange(keys) <= torch.randint(0, keys, (batch, 1, queries, 1))
        attn_mask[0, 0, 0] = False
    elif mask:
        attn_mask = torch.randn(heads, queries, keys).to(dtype)
    inputs += [attn_mask, torch.randn(heads).to(dtype) if sinks else None]
    attributes = {"softcap": 2.0, "scale": 0.3} if sinks else {}
    actual = run_op(kernels, OP, inputs, threads=2, **attributes)
    assert_close(actual, expected(inputs, attributes, dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gives_the_bits_of_attention_to_collected_keys(kernels, shape):
    query, key_pool, value_pool, table = inputs_of(shape)
    collected = [pool[table].flatten(1, 2).transpose(1, 2) for pool in (key_pool, value_pool)]
    mask = torch.rand(shape[0], 1, shape[4], shape[6] * shape[7]) > 0.4
    actual = run_op(kernels, OP, [query, key_pool, value_pool, table, mask])
    inputs = [query, *(x.contiguous() for x in collected), mask]
    assert actual.equal(run_op(kernels, "scaled_dot_product_attention", inputs))


CODED_SHAPES = [(*shape[:-2], shape[-2] + shape[-2] % 2, shape[-1] + shape[-1] % 2)
                for shape in SHAPES]  # fmt: skip
"""Two codes of 4 bits are in a byte."""


def coded_inputs_of(shape, bits, dtype=torch.float32):
    query, *pools, table = inputs_of(shape, dtype)
    return [query, *(x for pool in pools for x in quantized_rows(pool, bits)), table]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["", "bool", "bias", "sinks"])
@pytest.mark.parametrize("shape", CODED_SHAPES, ids=str)
def test_codes_agree_with_the_reference(kernels, shape, kind, bits, dtype):
    inputs = coded_inputs_of(shape, bits, dtype)
    batch, heads, queries, keys = shape[0], shape[1], shape[4], shape[6] * shape[7]
    mask, attributes = None, {"bits": bits}
    if kind == "bool":  # rows of several lengths, and one that attends to nothing
        mask = torch.arange(keys) <= torch.randint(0, keys, (batch, 1, queries, 1))
        mask[0, 0, 0] = False
    elif kind == "bias":
        mask = torch.randn(heads, queries, keys).to(dtype)
    inputs += [mask, torch.randn(heads).to(dtype) if kind == "sinks" else None]
    attributes |= {"softcap": 2.0, "scale": 0.3} if kind == "sinks" else {}
    wide = [double(x) if x is not None and x.is_floating_point() else x for x in inputs]
    actual = run_op(kernels, "paged_attention_nbits", inputs, threads=2, **attributes)
    assert_close(actual, CODED.reference(*wide, **attributes).to(dtype))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", CODED_SHAPES, ids=str)
def test_codes_give_the_bits_of_attention_to_collected_codes(kernels, shape, bits):
    query, *pools, table = coded_inputs_of(shape, bits)
    collected = [pool[table].flatten(1, 2).transpose(1, 2).contiguous() for pool in pools]
    mask = torch.rand(shape[0], 1, shape[4], shape[6] * shape[7]) > 0.4
    inputs = [query, *pools, table, mask]
    actual = run_op(kernels, "paged_attention_nbits", inputs, bits=bits)
    assert actual.equal(run_op(kernels, "attention_nbits", [query, *collected, mask], bits=bits))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("queries", [1, 7])
def test_rows_of_codes_have_the_same_bits_alone(kernels, queries, bits):
    """In a deterministic session, beside longer rows and with a longer table."""
    lengths, tokens, width = [3, 100, 64, 17], 16, 8
    shape = (len(lengths), 8, 2, 2, queries, 40, tokens, width, 64, 64)
    query, *pools, table = coded_inputs_of(shape, bits)
    ends = torch.tensor(lengths)[:, None] + torch.arange(1, queries + 1)
    mask = torch.arange(tokens * width) < ends[:, None, :, None]
    (whole,) = deterministic(
        kernels, "paged_attention_nbits", [query, *pools, table, mask], threads=2, bits=bits
    )
    for row, length in enumerate(lengths):
        places = -(-(length + queries) // tokens)
        part = [x[row : row + 1] for x in (query, table[:, :places], mask[..., : places * tokens])]
        inputs = [part[0], *pools, *(x.contiguous() for x in part[1:])]
        (alone,) = deterministic(kernels, "paged_attention_nbits", inputs, bits=bits)
        assert same(alone, whole[row : row + 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: torch.randn(9, 4, 2, 8)}, "key_codes is float, expected uint8"),
        ({2: torch.randn(9, 4, 3, 1)}, "one number for each row"),
        ({5: torch.full((3, 5), 9)}, "block_table is 9, but key_pool has 9 blocks"),
    ],
)
def test_codes_that_do_not_fit_are_errors(kernels, change, message):
    inputs = coded_inputs_of((*SHAPES[0][:-1], 6), 8)
    for position, x in change.items():
        inputs[position] = x
    with pytest.raises(Exception, match=message):
        run_op(kernels, "paged_attention_nbits", inputs, bits=8)


@pytest.mark.parametrize("block", [-1, 9, 1 << 40])
def test_a_block_that_there_is_not_is_an_error(kernels, block):
    inputs = inputs_of(SHAPES[0])
    inputs[3][1, 2] = block
    with pytest.raises(Exception, match=rf"block_table is {block}, but key_pool has 9 blocks"):
        run_op(kernels, OP, inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: torch.randn(9, 3, 2, 8), 2: torch.randn(9, 3, 4, 5)}, "a power of two"),
        ({2: torch.randn(8, 4, 4, 5)}, "the same blocks"),
        ({3: torch.zeros(2, 5, dtype=torch.int64)}, "the blocks of each batch row"),
        ({3: torch.zeros(5, dtype=torch.int64)}, "the blocks of each batch row"),
        ({1: torch.randn(9, 4, 3, 8)}, "a multiple"),
        ({4: torch.ones(19, dtype=torch.bool)}, "does not broadcast"),
    ],
)
def test_shapes_that_do_not_fit_are_errors(kernels, change, message):
    inputs = [*inputs_of(SHAPES[0]), None]
    for position, x in change.items():
        inputs[position] = x
    with pytest.raises(Exception, match=message):
        run_op(kernels, OP, inputs)
