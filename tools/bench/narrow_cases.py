"""Cases of plain products: bfloat16, float16, and few-bit weights.

More of torch runs beside: oneDNN's product with a packed weight, and products of 8-bit integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from tools.bench import fused_ops, openvino_graphs
from tools.bench.case import BF16, F16, NARROW, Bound, Call, Case, Inputs, normal
from tools.bench.few_bit_weights import rounded_rows, weight_matrix

GROUP = 32


def product_case(rows: int, k: int, n: int, dtype: torch.dtype, **rest: Any) -> Case:
    """Rows times one constant matrix ``[n, k]``, as ``fuse_narrow_products`` writes it."""
    return Case(
        f"product {rows}×{k}×{n}, constant, {NARROW[dtype]}",
        "gather_mm",
        lambda: [normal(rows, k, dtype=dtype), normal(n, k, dtype=dtype)],
        lambda x, w: x @ w.T,
        "bf16" if rows > 1 else "read",
        flops=2.0 * rows * k * n,
        bytes=float(n * k * dtype.itemsize),
        constants=(1,),
        attributes={"transpose_rhs": 1},
        fused=(fused_ops.matmul,) if dtype == F16 else (),
        prepared={"oneDNN, packed": packed_product} if dtype == BF16 else {},
        openvino=openvino_graphs.product,
        **rest,
    )


def few_bits_case(rows: int, k: int, n: int, bits: int, *, rounded: bool, **rest: Any) -> Case:
    """A linear layer with codes in groups of 32, its activations rounded to 8 bits or not."""
    attributes = {"bits": bits, "group_size": GROUP, "activation_bits": 8 if rounded else 0}

    def inputs() -> Inputs:
        codes = torch.randint(0, 256, (n, k // GROUP, GROUP * bits // 8), dtype=torch.uint8)
        return [normal(rows, k), codes, (torch.rand(n, k // GROUP) / 32).half()]

    bound: Bound = "read" if rows == 1 else "int8" if rounded else "bf16"
    return Case(
        f"linear_nbits {rows}×{k}×{n}, {bits} bits{', rounded activations' if rounded else ''}",
        "linear_nbits",
        inputs,
        None,
        bound,
        flops=2.0 * rows * k * n,
        bytes=n * k * (bits / 8 + 2 / GROUP),
        constants=(1, 2),
        attributes=attributes,
        exact={"activation_bits": 0},
        fused=(fused_ops.matmul_nbits, *((fused_ops.dynamic_quantize_matmul,) * (bits == 8))),
        prepared=_products_of_codes(attributes),
        openvino=openvino_graphs.few_bits(attributes),
        **rest,
    )


def packed_product(inputs: Inputs) -> Call:
    """oneDNN's product of bfloat16 with a weight that it packed, as inductor calls it."""
    x, weight = inputs[:2]
    assert x is not None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def _products_of_codes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return products of the dequantized weight and of its columns in 8 bits, each packed once."""

    def in_float32(inputs: Inputs) -> Call:
        x, weight = inputs[0], weight_matrix(inputs, attributes)
        assert x is not None
        return lambda: functional.linear(x, weight)

    def in_bfloat16(inputs: Inputs) -> Call:
        x = inputs[0]
        assert x is not None
        return packed_product([x.bfloat16(), weight_matrix(inputs, attributes).bfloat16()])

    def dynamic(inputs: Inputs) -> Call:
        """The weight in 8 bits with a scale per column, rows rounded with one scale for all."""
        codes, scales = rounded_rows(weight_matrix(inputs, attributes))
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "onednn"
        weight = torch._make_per_channel_quantized_tensor(
            codes, scales.double(), torch.zeros(len(codes), dtype=torch.long), 0
        )
        packed = torch.ops.quantized.linear_prepack(weight, None)
        torch.backends.quantized.engine = before
        return lambda: torch.ops.quantized.linear_dynamic(inputs[0], packed, False)

    def integers(inputs: Inputs) -> Call:
        """The same with a scale per row, as torchao's dynamic quantization."""
        x = inputs[0]
        assert x is not None
        codes, scales = rounded_rows(weight_matrix(inputs, attributes))

        def multiply() -> torch.Tensor:
            rows, steps = rounded_rows(x)
            return torch._int_mm(rows, codes.T).float() * steps[:, None] * scales

        return multiply

    return {
        "torch": in_float32,
        "oneDNN bfloat16, packed": in_bfloat16,
        "oneDNN int8, dynamic": dynamic,
        "torch._int_mm": integers,
    }


def narrow_cases() -> list[Case]:
    """Products in bfloat16 and float16, and with few bits."""
    shapes = ((1, 1024, 2816), (16, 1024, 2816), (128, 1024, 2816), (1024, 1024, 1024))
    layers = ((1, 2048, 2816), (16, 2048, 2816), (128, 2048, 2816), (1024, 1024, 1024))
    return [
        *(product_case(*shape, BF16) for shape in shapes),
        *(product_case(*shape, F16) for shape in shapes[2:]),
        *(few_bits_case(*s, bits, rounded=True) for bits in (4, 8) for s in layers),
        *(few_bits_case(*s, 4, rounded=False) for s in (layers[0], layers[2])),
    ]
