"""Attention to codes through onnxruntime against its declared reference in double."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites.caches import ATTENTION_NBITS as COMPOSITE
from coreai_onnx.composites.caches import dequantized_rows, quantized_rows
from tests.custom_ops.single_op import DTYPES, double, run_op
from tests.support.tolerances import assert_close

OP = "attention_nbits"
SHAPES = [
    # batch, heads, key heads, value heads, queries, keys, head_dim, value_dim
    (3, 4, 2, 4, 7, 21, 8, 6),
    (2, 8, 2, 2, 1, 300, 64, 64),
    (2, 4, 1, 1, 1, 513, 256, 256),
    (1, 4, 1, 1, 1, 40, 34, 18),
    (2, 4, 1, 1, 70, 136, 34, 18),
    (1, 3, 3, 3, 65, 65, 16, 96),
    (1, 2, 1, 1, 2, 0, 16, 16),
]


def inputs_of(shape, bits, dtype=torch.float32):
    B, H, K, V, T, S, D, E = shape
    inputs = [torch.randn(B, H, T, D).to(dtype)]
    for heads, dim in ((K, D), (V, E)):
        inputs += quantized_rows(torch.randn(B, heads, S, dim).to(dtype), bits)
    return inputs


def expected(inputs, attributes, dtype):
    wide = [x if x is None or not x.is_floating_point() else double(x) for x in inputs]
    return COMPOSITE.reference(*wide, **attributes).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["", "bool", "bias", "causal", "window", "sinks"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agrees_with_the_reference(kernels, shape, kind, bits, dtype):
    inputs = inputs_of(shape, bits, dtype)
    batch, heads, queries, keys = shape[0], shape[1], shape[4], shape[5]
    mask, sinks, attributes = None, None, {"bits": bits}
    if kind == "bool":  # rows of several lengths, and one that attends to nothing
        mask = torch.arange(keys) <= torch.randint(0, keys + 1, (batch, 1, queries, 1))
        mask[0, 0, 0] = False
    elif kind == "bias":
        mask = torch.randn(heads, queries, keys).to(dtype)
    elif kind in ("causal", "window"):
        attributes |= {"is_causal": 1, "window_size": 9 if kind == "window" else 0}
    elif kind == "sinks":
        sinks = torch.randn(heads).to(dtype)
        attributes |= {"softcap": 2.0, "scale": 0.3}
    inputs += [mask, sinks]
    actual = run_op(kernels, OP, inputs, threads=2, **attributes)
    assert_close(actual, expected(inputs, attributes, dtype))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_values_are_within_half_a_step(bits, dtype):
    x = torch.randn(3, 2, 50, 32).to(dtype)
    x[0, 0, 0] = 0
    codes, scales = quantized_rows(x, bits)
    assert codes.dtype == torch.uint8
    assert codes.shape[-1] == 32 * bits // 8
    values = dequantized_rows(codes, scales, bits, torch.float64)
    step = x.double().abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    # In float16, the quotient is rounded by up to a sixteenth of a step.
    assert ((values - x.double()).abs() <= (0.5 + 1 / 15) * step + 1e-6).all()
    assert values[0, 0, 0].eq(0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: torch.randn(3, 2, 21, 8)}, "key_codes is float, expected uint8"),
        ({2: torch.randn(3, 2, 20, 1)}, "one number for each row"),
        ({4: torch.randn(3, 4, 21, 2)}, "one number for each row"),
        ({4: torch.randn(3, 4, 21, 1).half()}, "no kernel def matches node inputs"),
        ({1: torch.zeros(3, 2, 21, 7, dtype=torch.uint8)}, "the same last size"),
        ({5: torch.ones(19, dtype=torch.bool)}, "does not broadcast"),
    ],
)
def test_inputs_that_do_not_fit_are_errors(kernels, change, message):
    inputs = [*inputs_of(SHAPES[0], 8), None]
    for position, x in change.items():
        inputs[position] = x
    with pytest.raises(Exception, match=message):
        run_op(kernels, OP, inputs, bits=8)


def test_other_bits_are_an_error(kernels):
    with pytest.raises(Exception, match="bits is 5, expected 8 or 4"):
        run_op(kernels, OP, inputs_of(SHAPES[0], 8), bits=5)
