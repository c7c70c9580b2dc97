"""Modules that quantize and dequantize activations, and their torch ops.

```python
quantize = ActivationQuantizeModule(torch.tensor(0.1), torch.int8)
dequantize = ActivationDequantizeModule(torch.tensor(0.1))
y = dequantize(quantize(x))
```

``coreai::quantize`` and ``coreai::dequantize`` become ``QuantizeLinear`` and ``DequantizeLinear``,
around which onnxruntime selects operators on integers.
"""

from __future__ import annotations

import torch
from torch import nn

_FEW_BITS: dict[torch.dtype, tuple[int, int]] = {
    **{getattr(torch, f"int{n}"): (-(1 << (n - 1)), (1 << (n - 1)) - 1) for n in range(1, 8)},
    **{getattr(torch, f"uint{n}"): (0, (1 << n) - 1) for n in range(1, 8)},
}
"""The ranges of integer dtypes below 8 bits, whose tensors use a byte per element."""


def limits(dtype: torch.dtype) -> tuple[int, int]:
    """Return the least and the largest integer of a dtype.

    Raises:
        ValueError: If it is not a dtype of integers.
    """
    if dtype in _FEW_BITS:
        return _FEW_BITS[dtype]
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        raise ValueError(f"{dtype} is not a dtype of integers")
    info = torch.iinfo(dtype)
    return info.min, info.max


def stored(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a tensor that holds the integers of a dtype."""
    if dtype not in _FEW_BITS:
        return dtype
    return torch.int8 if _FEW_BITS[dtype][0] < 0 else torch.uint8


@torch.library.custom_op("coreai::quantize", mutates_args=())
def quantize(
    input: torch.Tensor,
    scale: torch.Tensor,
    output_dtype: torch.dtype,
    zero_point: torch.Tensor | None = None,
    minval: torch.Tensor | None = None,
    axis: int = 0,
) -> torch.Tensor:
    """Return ``round(input / scale) + zero_point``, clamped to the range of ``output_dtype``.

    With ``minval``, the value of the least integer ``qmin``, it is
    ``round((input - minval) / scale) + qmin``. Floats are divided by the scale, clamped and cast.

    Args:
        input: Floating.
        scale: One element, or a vector along ``axis``.
        output_dtype: An integer dtype or float8; integers of less than a byte are stored in one.
        zero_point: The shape of ``scale``, in the dtype of the result. Excludes ``minval``.
        minval: The shape of ``scale``, floating.
        axis: The axis of scales.
    """
    values, factors = input.float(), _along(scale.float(), axis, input)
    if output_dtype.is_floating_point:
        # QuantizeLinear saturates, where torch's conversion to float8_e5m2 gives infinity.
        largest = torch.finfo(output_dtype).max
        return (values / factors).clamp(-largest, largest).to(output_dtype)
    low, high = limits(output_dtype)
    if minval is not None:
        steps = torch.round((values - _along(minval.float(), axis, input)) / factors) + low
    else:
        # Half to even, as QuantizeLinear rounds.
        steps = torch.round(values / factors)
        if zero_point is not None:
            steps = steps + _along(zero_point.float(), axis, input)
    return steps.clamp(low, high).to(stored(output_dtype))


@quantize.register_fake
def _quantize_fake(
    input: torch.Tensor,
    scale: torch.Tensor,
    output_dtype: torch.dtype,
    zero_point: torch.Tensor | None = None,
    minval: torch.Tensor | None = None,
    axis: int = 0,
) -> torch.Tensor:
    del scale, zero_point, minval, axis
    return torch.empty_like(input, dtype=stored(output_dtype))


@torch.library.custom_op("coreai::dequantize", mutates_args=())
def dequantize(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    minval: torch.Tensor | None = None,
    axis: int = 0,
    input_dtype: torch.dtype | None = None,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return ``(input - zero_point) * scale``, or ``(input - qmin) * scale + minval``.

    Args:
        input: Integers, or float8 without ``zero_point`` and ``minval``.
        scale: One element, or a vector along ``axis``.
        zero_point: The shape of ``scale``. Excludes ``minval``.
        minval: The shape of ``scale``, floating: the value of ``qmin``, the least integer.
        axis: The axis of scales.
        input_dtype: The dtype whose least integer is ``qmin``; that of ``input`` by default.
        output_dtype: The dtype of the result; that of ``scale`` by default.
    """
    values, factors = input.float(), _along(scale.float(), axis, input)
    target = output_dtype or scale.dtype
    if minval is not None:
        low, _ = limits(input_dtype or input.dtype)
        return ((values - low) * factors + _along(minval.float(), axis, input)).to(target)
    if zero_point is not None:
        values = values - _along(zero_point.float(), axis, input)
    return (values * factors).to(target)


@dequantize.register_fake
def _dequantize_fake(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    minval: torch.Tensor | None = None,
    axis: int = 0,
    input_dtype: torch.dtype | None = None,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    del zero_point, minval, axis, input_dtype
    return torch.empty_like(input, dtype=output_dtype or scale.dtype)


class ActivationQuantizeModule(nn.Module):
    """Quantizes its input with a scale for all values, or for each index of an axis.

    Args:
        scale: One element, or a vector; floating.
        output_dtype: The dtype of the result: ``torch.int8``, ``torch.uint4``,
            ``torch.float8_e4m3fn`` …
        zero_point: The shape of ``scale``, in the dtype that stores the result. Excludes
            ``minval``.
        minval: The shape of ``scale``, floating: the value of the least integer.
        axis: The axis of scales.

    Raises:
        ValueError: If dtypes or shapes do not match, or parameters exclude each other.
    """

    def __init__(
        self,
        scale: torch.Tensor,
        output_dtype: torch.dtype,
        zero_point: torch.Tensor | None = None,
        minval: torch.Tensor | None = None,
        axis: int = 0,
    ) -> None:
        """Register the parameters as buffers."""
        super().__init__()
        _check(type(self).__name__, scale, zero_point, minval, output_dtype)
        self.output_dtype, self.axis = output_dtype, axis
        _hold(self, scale=scale, zero_point=zero_point, minval=minval)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return integers, or float8, in the shape of ``x``."""
        result: torch.Tensor = torch.ops.coreai.quantize(
            x, self.scale, self.output_dtype, self.zero_point, self.minval, self.axis
        )
        return result


class ActivationDequantizeModule(nn.Module):
    """Dequantizes its input with a scale for all values, or for each index of an axis.

    Args:
        scale: One element, or a vector; floating.
        zero_point: The shape of ``scale``. Excludes ``minval``.
        minval: The shape of ``scale``, floating: the value of the least integer.
        axis: The axis of scales.
        input_dtype: The dtype of the input, if a tensor holds it in another one; needed for
            ``minval``.
        output_dtype: The dtype of the result; that of ``scale`` by default.

    Raises:
        ValueError: If dtypes or shapes do not match, or parameters exclude each other.
    """

    def __init__(
        self,
        scale: torch.Tensor,
        zero_point: torch.Tensor | None = None,
        minval: torch.Tensor | None = None,
        axis: int = 0,
        input_dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        """Register the parameters as buffers."""
        super().__init__()
        name = type(self).__name__
        _check(name, scale, zero_point, minval, input_dtype)
        if minval is not None and input_dtype is None:
            raise ValueError(f"{name}: minval needs an input_dtype, whose least integer it is")
        self.axis, self.input_dtype, self.output_dtype = axis, input_dtype, output_dtype
        _hold(self, scale=scale, zero_point=zero_point, minval=minval)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return floating values in the shape of ``x``."""
        parameters = (self.scale, self.zero_point, self.minval, self.axis)
        result: torch.Tensor = torch.ops.coreai.dequantize(
            x, *parameters, self.input_dtype, self.output_dtype
        )
        return result


def _along(x: torch.Tensor, axis: int, like: torch.Tensor) -> torch.Tensor:
    """Return one element, or a vector as a tensor that broadcasts along an axis of another."""
    if x.numel() == 1:
        return x.reshape(())
    axis %= like.ndim
    return x.reshape([-1 if i == axis else 1 for i in range(like.ndim)])


def _hold(module: nn.Module, **parameters: torch.Tensor | None) -> None:
    """Register the parameters as buffers; torch 2.13 does not export buffers that are None."""
    for name, value in parameters.items():
        if value is None:
            setattr(module, name, None)
        else:
            module.register_buffer(name, value)


def _check(
    name: str,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    minval: torch.Tensor | None,
    dtype: torch.dtype | None,
) -> None:
    """Check the parameters of a module; ``dtype`` is that of the quantized values, if known."""
    if not scale.is_floating_point() or (scale.numel() != 1 and scale.ndim != 1):
        raise ValueError(f"{name}: scale is not one number or a vector, of a floating dtype")
    if zero_point is not None and minval is not None:
        raise ValueError(f"{name}: zero_point and minval exclude each other")
    for what, parameter in (("zero_point", zero_point), ("minval", minval)):
        if parameter is not None and parameter.shape != scale.shape:
            raise ValueError(f"{name}: {what} and scale differ in shape")
        if parameter is not None and dtype is not None and dtype.is_floating_point:
            raise ValueError(f"{name}: {dtype} has neither zero_point nor minval")
    if dtype is None:
        return
    # QuantizeLinear requires zero points in the dtype of its result.
    if zero_point is not None and zero_point.dtype != stored(dtype):
        raise ValueError(f"{name}: zero_point is {zero_point.dtype}, not {stored(dtype)}")
    # For its error: booleans and complex numbers have no limits.
    if not dtype.is_floating_point:
        limits(dtype)
