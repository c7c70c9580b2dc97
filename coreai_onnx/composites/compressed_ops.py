"""Torch ops that return decompressed weights, for modules that call them directly.

```python
weight = torch.ops.coreai.lut_to_dense(indices, lut, 0)
weight = torch.ops.coreai.constexpr_blockwise_shift_scale(codes, scale, zero_point)
weight = torch.ops.coreai.sparse_to_dense(nonzero, mask)
```

They take codes of one byte. In a converted program they become the composites of the same purpose,
and constant codes are packed into as few bits as they need.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coreai_onnx.composites import compressed_weights
from coreai_onnx.composites.activation_modules import limits
from coreai_onnx.composites.checks import refuse
from coreai_onnx.composites.compressed_weights import check_blocks, tiled
from coreai_onnx.composites.few_bit_weights import numbers_of
from coreai_onnx.model.weight_formats import E2M1

PAIRS = torch.float4_e2m1fn_x2
POWERS = torch.float8_e8m0fnu
COMPUTED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
"""The dtypes in which weights are computed."""
_BYTES = (torch.int8, torch.uint8)
# As many entries as uint8, the dtype of indices, can select from.
_INDEXED = 256


# ---------------------------------------------------------------------- palettes
@torch.library.custom_op("coreai::lut_to_dense", mutates_args=())
def lut_to_dense(indices: torch.Tensor, lut: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    """Return the weight whose elements are looked up in tables.

    Args:
        indices: uint8, at least rank 1.
        lut: ``[blocks of axis 0, ..., entries, vector]``; ``entries`` is a power of two, at most
            256.
        axis: Axis of the weight along which the elements of a vector lie.

    Returns:
        The shape of ``indices`` with the size of ``axis`` multiplied by ``vector``, in the dtype of
        ``lut``.

    Raises:
        ValueError: If dtypes or shapes do not match, or an index is out of range.
    """
    refuse(palette_fault(indices, lut, axis) or index_fault(indices, lut), "lut_to_dense")
    # Contiguous, as the fake implementation declares it.
    return compressed_weights.lut_to_dense(
        lut, indices.reshape(-1), shape=indices.shape, axis=axis or 0
    ).contiguous()


@lut_to_dense.register_fake
def _lut_to_dense_fake(
    indices: torch.Tensor, lut: torch.Tensor, axis: int | None = None
) -> torch.Tensor:
    # Indices are not checked: fake tensors have no values.
    refuse(palette_fault(indices, lut, axis), "lut_to_dense")
    return lut.new_empty(compressed_weights.dense_shape(indices.shape, lut.shape[-1], axis or 0))


def palette_fault(
    indices: torch.Tensor, lut: torch.Tensor, axis: int | None, axis_name: str = "an axis"
) -> str:
    """Return a message about invalid dtypes or shapes of a palette; empty if they are valid."""
    if indices.dtype != torch.uint8 or indices.ndim < 1:
        return f"indices must be uint8 with axes, got {indices.dtype} of rank {indices.ndim}"
    if lut.ndim != indices.ndim + 2:
        return f"lut must have rank {indices.ndim + 2} (indices + 2), got {lut.ndim}"
    if axis is None and lut.shape[-1] != 1:
        return f"vectors of {lut.shape[-1]} elements need {axis_name}"
    if lut.shape[-2] > _INDEXED:
        return f"lut has {lut.shape[-2]} entries, uint8 selects from {_INDEXED}"
    return compressed_weights.check_lut(lut.shape, indices.shape, axis or 0)


def index_fault(indices: torch.Tensor, lut: torch.Tensor) -> str:
    """Return a message if an index is out of range of the entries; empty otherwise."""
    largest, entries = int(indices.max()) if indices.numel() else 0, lut.shape[-2]
    return "" if largest < entries else f"index {largest} is out of range of {entries} entries"


# ---------------------------------------------------------------------- scales
@torch.library.custom_op("coreai::constexpr_blockwise_shift_scale", mutates_args=())
def constexpr_blockwise_shift_scale(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    minval: torch.Tensor | None = None,
    input_dtype: torch.dtype | None = None,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return a weight with a scale, and a zero point or a minimum, for each block.

    Integers become ``x * scale``, ``(x - zero_point) * scale``, or ``(x - qmin) * scale + minval``,
    where ``qmin`` is the least value of ``input_dtype``. Floats become ``x * scale``.

    Args:
        input: int8 or uint8, with one value of ``input_dtype`` per element; floating; or uint8 with
            two values of float4 per byte, the low half first.
        scale: ``[blocks of axis 0, ...]``, floating, of the rank of the weight, whose sizes it
            divides.
        zero_point: The shape of ``scale``, the dtype of ``input``. Excludes ``minval``.
        minval: The shape of ``scale``, floating. Needs ``input_dtype``.
        input_dtype: The dtype of the values; that of ``input`` by default, or float4 for uint8 with
            a scale of float8_e8m0fnu alone.
        output_dtype: The dtype of the result; that of ``scale`` by default.

    Raises:
        ValueError: If dtypes or shapes do not match, or parameters exclude each other.
    """
    shape = _check_scaled(input, scale, zero_point, minval, input_dtype, output_dtype)
    target = output_dtype or scale.dtype
    computed = computed_dtype(scale.dtype, target)
    factors = scale.to(computed)
    if is_float4(input, scale, zero_point, minval, input_dtype):
        codes, table = float_table(input, PAIRS)
        return (table[codes.long()] * tiled(factors, shape)).to(target)
    if input.is_floating_point():
        return (input.to(computed) * tiled(factors, shape)).to(target)
    low, high = limits(input_dtype or input.dtype)
    # The difference of two bytes may not fit in a byte.
    steps = input.to(torch.int16) - low
    if steps.numel() and not 0 <= int(steps.min()) <= int(steps.max()) <= high - low:
        raise ValueError(f"constexpr_blockwise_shift_scale: input is out of range of {input_dtype}")
    return compressed_weights.blockwise_shift_scale(
        factors,
        steps.to(torch.uint8).reshape(-1),
        zero_point,
        None if minval is None else minval.to(computed),
        shape=shape,
        minimum=low,
    ).to(target)


@constexpr_blockwise_shift_scale.register_fake
def _constexpr_blockwise_shift_scale_fake(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    minval: torch.Tensor | None = None,
    input_dtype: torch.dtype | None = None,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    shape = _check_scaled(input, scale, zero_point, minval, input_dtype, output_dtype)
    return input.new_empty(shape, dtype=output_dtype or scale.dtype)


def _check_scaled(
    data: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    minval: torch.Tensor | None,
    input_dtype: torch.dtype | None,
    output_dtype: torch.dtype | None,
) -> Sequence[int]:
    """Return the shape of the weight.

    Raises:
        ValueError: If the arguments do not fit together.
    """
    shifted = zero_point is not None or minval is not None
    pairs = is_float4(data, scale, zero_point, minval, input_dtype)
    wrong = ""
    if not scale.is_floating_point():
        wrong = f"scale must be floating, got {scale.dtype}"
    elif (output_dtype or scale.dtype) not in COMPUTED:
        wrong = f"a scale of {scale.dtype} needs an output_dtype of {COMPUTED}"
    elif zero_point is not None and minval is not None:
        wrong = "zero_point and minval exclude each other"
    elif minval is not None and input_dtype is None:
        wrong = "minval needs an input_dtype, whose least value it stands for"
    elif shifted and (pairs or data.is_floating_point()):
        wrong = f"{input_dtype or data.dtype} has neither zero_point nor minval"
    elif not data.is_floating_point() and data.dtype not in _BYTES:
        wrong = f"input must be int8, uint8 or floating, got {data.dtype}"
    elif zero_point is not None and zero_point.dtype != data.dtype:
        wrong = f"zero_point must be {data.dtype}, as the input, got {zero_point.dtype}"
    elif any(x is not None and x.shape != scale.shape for x in (zero_point, minval)):
        wrong = "zero_point or minval and scale differ in shape"
    shape = [*data.shape[:-1], 2 * data.shape[-1]] if pairs and data.ndim else list(data.shape)
    refuse(wrong or check_blocks(scale.shape, shape, "scale"), "constexpr_blockwise_shift_scale")
    return shape


def is_float4(
    data: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    minval: torch.Tensor | None,
    input_dtype: torch.dtype | None,
) -> bool:
    """Return whether bytes are pairs of float4, declared or by the dtype of their only scale."""
    if input_dtype is not None or zero_point is not None or minval is not None:
        return input_dtype == PAIRS
    return data.dtype == PAIRS or (data.dtype == torch.uint8 and scale.dtype == POWERS)


def float_table(data: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return narrow floats as indices into the table of all values of their dtype.

    Args:
        data: float8, or bytes with two values of float4, the low half first.
        dtype: ``torch.float4_e2m1fn_x2``, or the dtype of the data.

    Returns:
        uint8 indices in the shape of the values, and the values, float32.
    """
    if dtype == PAIRS:
        packed = data.view(torch.uint8)
        return torch.stack([packed & 15, packed >> 4], -1).flatten(-2), numbers_of(E2M1)
    # All bit patterns in order, so that each byte is its own index.
    return data.view(torch.uint8), numbers_of(str(data.dtype).removeprefix("torch."))


def computed_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """Return the dtype in which a weight with a scale of one dtype and a result are computed."""
    result = COMPUTED[0] if dtypes[0] not in COMPUTED else dtypes[0]
    for dtype in dtypes[1:]:
        result = torch.promote_types(result, dtype)
    return result


# ---------------------------------------------------------------------- sparsity
@torch.library.custom_op("coreai::sparse_to_dense", mutates_args=())
def sparse_to_dense(nonzero: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the weight that has the given values where the mask is 1, and zeros elsewhere.

    Args:
        nonzero: ``[count]``: the values in C order.
        mask: uint8 or bool, of the shape of the weight: 1 for each value.

    Returns:
        The shape of ``mask``, in the dtype of ``nonzero``.

    Raises:
        ValueError: If dtypes or ranks are wrong, the mask has other values than 0 and 1, or their
            number is not that of the values.
    """
    refuse(sparse_fault(nonzero, mask) or mask_fault(nonzero, mask), "sparse_to_dense")
    dense = nonzero.new_zeros(mask.shape)
    dense[mask.bool()] = nonzero
    return dense


@sparse_to_dense.register_fake
def _sparse_to_dense_fake(nonzero: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    refuse(sparse_fault(nonzero, mask), "sparse_to_dense")
    return nonzero.new_empty(mask.shape)


def sparse_fault(nonzero: torch.Tensor, mask: torch.Tensor) -> str:
    """Return a message if the dtypes or ranks of a sparse weight are invalid; empty otherwise."""
    if nonzero.ndim != 1:
        return f"values must have rank 1, got {nonzero.ndim}"
    if mask.dtype not in (torch.uint8, torch.bool) or mask.ndim < 1:
        return f"mask must be uint8 or bool with axes, got {mask.dtype} of rank {mask.ndim}"
    return ""


def mask_fault(nonzero: torch.Tensor, mask: torch.Tensor) -> str:
    """Return a message about invalid values of a mask; empty if they are valid."""
    if not bool((mask <= 1).all()):
        return "mask has values other than 0 and 1"
    ones = int(mask.sum())
    return "" if ones == len(nonzero) else f"{len(nonzero)} values for {ones} ones in the mask"
