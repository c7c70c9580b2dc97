"""Modules whose results are decompressed weights, for parametrizations of users' models.

```python
torch.nn.utils.parametrize.register_parametrization(linear, "weight", PalettizeModule(indices, lut))
```

In an exported program, each call is one op, which becomes a composite. The weight stays compressed
in the file.
"""

from __future__ import annotations

import re

import torch
from torch import nn

from coreai_onnx.composites.checks import refuse, require
from coreai_onnx.composites.compressed_ops import (
    PAIRS,
    POWERS,
    float_table,
    index_fault,
    is_float4,
    mask_fault,
    palette_fault,
    sparse_fault,
)
from coreai_onnx.composites.compressed_weights import check_blocks, dense_shape, streamed
from coreai_onnx.composites.torch_ops import call
from coreai_onnx.model.packed_codes import STREAM_BITS

_INTEGER = re.compile(r"torch\.(u?)int(\d+)")


class PalettizeModule(nn.Module):
    """A weight that is looked up in tables.

    Args:
        indices: uint8, of the shape of the weight, at least rank 1; for a table of vectors, the
            size of ``vector_axis`` is divided by the size of a vector.
        lut: ``[blocks of axis 0, ..., entries, vector]``, floating; ``entries`` is a power of two,
            at most 256. Each block of the weight has a table; a size of 1 is one block.
        vector_axis: Axis of the weight along which the elements of a vector lie; needed if vectors
            have more than one element.

    Raises:
        ValueError: If dtypes or shapes do not match, ``entries`` is not a power of two, or an index
            is out of range.
    """

    def __init__(
        self, indices: torch.Tensor, lut: torch.Tensor, vector_axis: int | None = None
    ) -> None:
        """Pack the indices into as many bits as the table needs."""
        super().__init__()
        name = type(self).__name__
        require(lut.is_floating_point(), name, f"lut must be floating, got {lut.dtype}")
        fault = palette_fault(indices, lut, vector_axis, "a vector_axis")
        refuse(fault or index_fault(indices, lut), name)
        self.shape, self.axis, entries = list(indices.shape), vector_axis or 0, lut.shape[-2]
        self.bits = min(b for b in STREAM_BITS if entries <= 1 << b)
        self.axis %= indices.ndim
        self.register_buffer("indices", streamed(indices, self.bits))
        self.register_buffer("lut", lut)
        # Declared here, so that the scaled subclass shares forward.
        self.register_buffer("scale", None)
        self.indices: torch.Tensor
        self.lut: torch.Tensor
        self.scale: torch.Tensor | None

    def forward(self, original: torch.Tensor | None = None) -> torch.Tensor:
        """Return the weight; ``original`` is that of a parametrization and has no effect."""
        del original
        tensors = (self.lut, self.indices, *([] if self.scale is None else [self.scale]))
        return call("lut_to_dense", *tensors, bits=self.bits, shape=self.shape, axis=self.axis)


class ScaledPalettizeModule(PalettizeModule):
    """A weight that is looked up in tables and multiplied by a scale for each block.

    Args:
        indices: As in :class:`PalettizeModule`.
        lut: As in :class:`PalettizeModule`, of any dtype; it is converted to the dtype of
            ``scale``.
        scale: ``[blocks of axis 0, ...]``, floating, of the rank of the weight, whose sizes it
            divides.
        vector_axis: As in :class:`PalettizeModule`.

    Raises:
        ValueError: As :class:`PalettizeModule`, and if ``scale`` does not divide the weight.
    """

    def __init__(
        self,
        indices: torch.Tensor,
        lut: torch.Tensor,
        scale: torch.Tensor,
        vector_axis: int | None = None,
    ) -> None:
        """Store the scale in addition to the packed indices."""
        name = type(self).__name__
        require(scale.is_floating_point(), name, f"scale must be floating, got {scale.dtype}")
        super().__init__(indices, lut.to(scale.dtype), vector_axis)
        whole = dense_shape(self.shape, lut.shape[-1], self.axis)
        refuse(check_blocks(scale.shape, whole, "scale"), name)
        self.scale = scale


class SparseModule(nn.Module):
    """A sparse weight, of which only the nonzero elements are stored.

    Args:
        nonzero_data: ``[count]``, floating: the values in C order.
        mask: uint8 or bool, of the shape of the weight: 1 for each value.

    Raises:
        ValueError: If dtypes do not match, the mask has other values than 0 and 1, or their number
            is not that of the values.
    """

    def __init__(self, nonzero_data: torch.Tensor, mask: torch.Tensor) -> None:
        """Pack the mask into bits."""
        super().__init__()
        name, values = type(self).__name__, nonzero_data
        require(values.is_floating_point(), name, f"values must be floating, got {values.dtype}")
        refuse(sparse_fault(values, mask) or mask_fault(values, mask), name)
        self.shape = list(mask.shape)
        self.register_buffer("nonzero_data", nonzero_data)
        self.register_buffer("mask", streamed(mask, 1))
        self.nonzero_data: torch.Tensor
        self.mask: torch.Tensor

    def forward(self, original: torch.Tensor | None = None) -> torch.Tensor:
        """Return the weight; ``original`` is that of a parametrization and has no effect."""
        del original
        return call("sparse_to_dense", self.nonzero_data, self.mask, shape=self.shape)


class WeightDequantizeModule(nn.Module):
    """A quantized weight with a scale, and a zero point or a minimum, for each block.

    Integers become ``x * scale``, ``(x - zero_point) * scale``, or ``(x - qmin) * scale + minval``,
    where ``qmin`` is the least value of ``input_dtype``. Floats become ``x * scale``.

    Args:
        quantized_data: int8 or uint8, with one value of ``input_dtype`` per element; float8; or
            uint8 with two values of float4 per byte, the low half first.
        scale: ``[blocks of axis 0, ...]``, floating, of the rank of the weight, whose sizes it
            divides.
        zero_point: The shape of ``scale``, the dtype of ``quantized_data``. Excludes ``minval``.
        minval: The shape of ``scale``, floating.
        input_dtype: ``torch.int4``, ``torch.uint3``, ``torch.float4_e2m1fn_x2`` …, of 8, 6, 4, 3, 2
            or 1 bits; that of ``quantized_data`` by default.
        output_dtype: Dtype of the weight; that of ``scale`` by default.

    Raises:
        ValueError: If dtypes or shapes do not match, both of ``zero_point`` and ``minval`` are
            given or one of them for floats, ``minval`` is given without ``input_dtype``, or a scale
            of float8_e8m0fnu without ``output_dtype``.
    """

    def __init__(
        self,
        quantized_data: torch.Tensor,
        scale: torch.Tensor,
        zero_point: torch.Tensor | None = None,
        minval: torch.Tensor | None = None,
        input_dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        """Pack the data into as many bits as its dtype has."""
        super().__init__()
        name = type(self).__name__
        require(scale.is_floating_point(), name, f"scale must be floating, got {scale.dtype}")
        exact = scale.dtype != POWERS or output_dtype is not None
        require(exact, name, f"a scale of {POWERS} needs an output_dtype")
        exclusive = zero_point is None or minval is None
        require(exclusive, name, "zero_point and minval exclude each other")
        declared = minval is None or input_dtype is not None
        require(declared, name, "minval needs an input_dtype, whose least value it stands for")
        self.register_buffer("scale", scale.to(output_dtype or scale.dtype))
        self.register_buffer("zero_point", zero_point)
        self.register_buffer("minval", None if minval is None else minval.to(self.scale.dtype))
        self.scale: torch.Tensor
        self.zero_point: torch.Tensor | None
        self.minval: torch.Tensor | None
        pairs = is_float4(quantized_data, scale, zero_point, minval, input_dtype)
        dtype = PAIRS if pairs else input_dtype or quantized_data.dtype
        values: PalettizeModule | None = None
        if dtype == PAIRS or quantized_data.is_floating_point():
            plain = zero_point is None and minval is None
            require(plain, name, f"{dtype} has neither zero_point nor minval")
            values = _floats(quantized_data, self.scale, dtype, name)
        self.floats = values
        if values is None:
            self._store_integers(quantized_data, dtype)

    def _store_integers(self, data: torch.Tensor, dtype: torch.dtype) -> None:
        name, match = type(self).__name__, _INTEGER.fullmatch(str(dtype))
        bits = int(match[2]) if match else 0
        stored = data.dtype in (torch.int8, torch.uint8) and data.ndim >= 1
        require(stored, name, f"data must be int8 or uint8 with axes, got {data.dtype}")
        require(bits in STREAM_BITS, name, f"{dtype} is not an integer of {STREAM_BITS} bits")
        self.minimum = 0 if match and match[1] else -(1 << (bits - 1))
        self.bits, self.shape = bits, list(data.shape)
        refuse(check_blocks(self.scale.shape, self.shape, "scale"), name)
        for what, parameter in (("zero_point", self.zero_point), ("minval", self.minval)):
            fits = parameter is None or parameter.shape == self.scale.shape
            require(fits, name, f"{what} and scale differ in shape")
        zeros = self.zero_point is None or self.zero_point.dtype == data.dtype
        require(zeros, name, f"zero_point must be {data.dtype}, as the data")
        try:
            # Codes count from the least integer, since a stream has no signs.
            self.register_buffer("codes", streamed(data.to(torch.int64) - self.minimum, bits))
        except ValueError as error:
            raise ValueError(f"{name}: data is out of range of {dtype} ({error})") from None
        self.codes: torch.Tensor

    def forward(self, original: torch.Tensor | None = None) -> torch.Tensor:
        """Return the weight; ``original`` is that of a parametrization and has no effect."""
        del original
        if self.floats is not None:
            weight: torch.Tensor = self.floats()
            return weight
        tensors = [self.scale, self.codes, self.zero_point, self.minval]
        # As in a node, absent inputs at the end are omitted.
        while tensors[-1] is None:
            tensors.pop()
        layout = {"bits": self.bits, "shape": self.shape, "minimum": self.minimum}
        return call("blockwise_shift_scale", *tensors, **layout)


def _floats(
    data: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, name: str
) -> ScaledPalettizeModule:
    """Return narrow floats as indices into the table of all values of their dtype."""
    narrow = dtype == PAIRS or (data.dtype.itemsize == 1 and dtype == data.dtype)
    require(narrow, name, f"data of {data.dtype} as {dtype} is not float8 or float4")
    codes, table = float_table(data, dtype)
    grid = [1] * codes.ndim
    return ScaledPalettizeModule(codes, table.to(scale.dtype).reshape(*grid, -1, 1), scale)
