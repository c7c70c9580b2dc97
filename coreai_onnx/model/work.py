"""The work of an operator: floating-point operations and bytes, from the shapes of its tensors.

A multiplication and an addition are two operations. Products, convolutions and attention have
formulas, which include the masked positions of attention; copies count none; any other operator
counts one operation for each element of its largest tensor. Bytes are those of the inputs that are
read and of the outputs that are written, each once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_BITS = {
    "bool": 8, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "float16": 16, "bfloat16": 16,
    "int32": 32, "uint32": 32, "float": 32, "float32": 32, "int64": 64, "uint64": 64, "double": 64,
    "float64": 64, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4e2m1": 4,
    "float8e4m3fn": 8, "float8e5m2": 8, "float8e4m3fnuz": 8, "float8e5m2fnuz": 8,
    "complex64": 64, "complex128": 128,
}  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """The type of a tensor: onnxruntime's name of the dtype, and the sizes."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> float:
        """The number of bytes; 0 for a dtype without a fixed size, such as a string."""
        return self.elements * _BITS.get(self.dtype, 0) / 8


Operands = Sequence[Operand]


def flops(op: str, inputs: Operands, outputs: Operands) -> float:
    """Return the floating-point operations of one call; see the module.

    Args:
        op: The operator without its domain, ``MatMul``.
        inputs: Its inputs; a weight that onnxruntime has packed may be missing.
        outputs: Its outputs.
    """
    if not inputs or not outputs or op in _COPIES:
        return 0.0
    count = _FORMULAS.get(op.partition(".")[0])
    try:
        if count is None:
            return float(max(tensor.elements for tensor in (*inputs, *outputs)))
        return float(count(inputs, outputs))
    except (IndexError, ValueError, ZeroDivisionError):  # an operator of the name with other inputs
        return 0.0


def moved_bytes(op: str, inputs: Operands, outputs: Operands) -> float:
    """Return the bytes that one call reads and writes; see the module.

    A lookup reads the rows that it returns, and experts the weights of the chosen ones at most. A
    view reads and writes nothing.
    """
    written = sum(tensor.nbytes for tensor in outputs)
    if op in _VIEWS:
        return 0.0
    if op in _LOOKUPS and len(inputs) > 1:
        return 2 * written + inputs[1].nbytes
    read = [tensor.nbytes for tensor in inputs]
    if op.partition(".")[0] == "gather_mm" and len(inputs) > 2 and inputs[1].shape:
        chosen = min(1.0, inputs[-1].elements / inputs[1].shape[0])
        read[1] *= chosen
    return sum(read) + written


def _product(inputs: Operands, outputs: Operands) -> int:
    """2·M·N·K, where the first operand is [..., M, K] or, transposed, [..., K, M]."""
    shape, result = inputs[0].shape, outputs[0].shape
    if len(shape) < 2 or len(result) < 2:
        return 2 * outputs[0].elements * shape[-1]
    depth = shape[-1] if shape[-2] == result[-2] else shape[-2]
    return 2 * outputs[0].elements * depth


def _taps(inputs: Operands, where: Operand) -> int:
    """2 for each element of a filter, at each element where a filter is applied."""
    # The other inputs are a bias or, in quantized operators, scales and zero points.
    weight = max(inputs[1:], key=lambda tensor: len(tensor.shape))
    return 2 * where.elements * (weight.elements // weight.shape[0])


def _attention(inputs: Operands, outputs: Operands) -> int:
    """2·S for each element of the query (the scores) and of the result, S positions of keys."""
    query, result = inputs[0], outputs[0]
    # With a cache, the second and third output are all keys and values so far.
    keys = [tensor for tensor in (*inputs[1:3], *outputs[1:3]) if len(tensor.shape) >= 3]
    positions = max((tensor.shape[-2] for tensor in keys), default=query.shape[-2])
    return 2 * positions * (min(query.elements, result.elements) + result.elements)


def _paged_attention(inputs: Operands, outputs: Operands) -> int:
    """As `_attention`, for all positions of the blocks of a row."""
    query, (_, tokens, *_), result = inputs[0], inputs[1].shape, outputs[0]
    # The only matrix: pools and queries have four axes.
    table = next(tensor for tensor in inputs if len(tensor.shape) == 2)
    return 2 * tokens * table.shape[-1] * (query.elements + result.elements)


def _bshd_attention(inputs: Operands, outputs: Operands) -> int:
    """As `_attention`, with keys of ``[batch, length, heads, dim]``."""
    return 2 * inputs[1].shape[1] * (inputs[0].elements + outputs[0].elements)


_FORMULAS: dict[str, Callable[[Operands, Operands], int]] = {
    **dict.fromkeys(
        (
            "MatMul", "FusedMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul",
            "DynamicQuantizeMatMul", "FusedMatMulActivation", "TransposeMatMul",
        ),
        _product,
    ),
    **dict.fromkeys(
        ("Gemm", "FusedGemm", "QGemm"),
        lambda i, o: 2 * o[0].elements * (i[0].elements // o[0].shape[0]),
    ),
    # 2·K for each element of the result, where the first operand is [..., K].
    **dict.fromkeys(
        ("MatMulNBits", "linear_nbits", "gather_mm", "MatMulBnb4"),
        lambda i, o: 2 * o[0].elements * i[0].shape[-1],
    ),
    **dict.fromkeys(
        ("Conv", "FusedConv", "NhwcFusedConv", "QLinearConv", "ConvInteger"),
        lambda i, o: _taps(i, o[0]),
    ),
    "ConvTranspose": lambda i, _: _taps(i, i[0]),
    **dict.fromkeys(
        (
            "Attention", "MultiHeadAttention", "GroupQueryAttention",
            "scaled_dot_product_attention",
        ),
        _attention,
    ),
    "paged_attention": _paged_attention,
    "paged_attention_nbits": _paged_attention,
    "scaled_dot_product_attention_bshd": _bshd_attention,
    "attention_nbits": lambda i, o: _attention([i[0], i[1], i[3]], o),
    # 7·Dk for each element of the values: decay 1, prediction 2, update 2, read 2.
    "gated_delta_update": lambda i, o: 7 * o[0].elements * i[0].shape[-1],
}  # fmt: skip
_VIEWS = frozenset(
    "Reshape Squeeze Unsqueeze Flatten Identity Shape Size Constant ConstantOfShape".split()
)
_LOOKUPS = frozenset(("Gather", "GatherElements", "GatherND", "GatherBlockQuantized"))
_COPIES = _VIEWS | _LOOKUPS | frozenset(
    "Transpose Concat Split Slice Expand Tile Pad Cast ScatterND ScatterElements Where Range "
    "MemcpyFromHost MemcpyToHost ReorderInput ReorderOutput kv_cache_update pixel_shuffle "
    "DepthToSpace SpaceToDepth If Loop Scan".split()
)  # fmt: skip
