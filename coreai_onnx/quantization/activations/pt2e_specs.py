"""How onnxruntime's CPU kernels take quantized tensors, as specs of torchao's PT2E."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torchao.quantization.pt2e import (
    FakeQuantize,
    HistogramObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
)
from torchao.quantization.pt2e.quantizer import DerivedQuantizationSpec, QuantizationSpec

_SMALLEST = torch.finfo(torch.float32).eps
_INT32 = torch.iinfo(torch.int32)
_LARGEST_BIAS = 1 << 30
"""The largest magnitude of a bias: the products are added to it in int32."""


@dataclass(frozen=True)
class Specs:
    """The specs of one configuration.

    Attributes:
        dynamic: Whether activations are quantized with the range of each input, at run time.
        training: Whether the observers are fake quantization for training.
        reduced: Whether weights have 7 bits, so that sums of two products fit in 16 bits.
    """

    dynamic: bool = False
    training: bool = False
    reduced: bool = False

    def activation(self) -> QuantizationSpec:
        """Return the spec of activations: uint8, one scale and zero point."""
        options = {"eps": _SMALLEST}
        if self.dynamic:
            # The graph computes a dynamic range in each run: there is nothing to observe.
            observer = PlaceholderObserver.with_args(**options)
        elif self.training:
            observer = FakeQuantize.with_args(observer=MovingAverageMinMaxObserver, **options)
        else:
            observer = HistogramObserver.with_args(**options)
        return QuantizationSpec(
            dtype=torch.uint8,
            quant_min=0,
            quant_max=255,
            qscheme=torch.per_tensor_affine,
            is_dynamic=self.dynamic,
            observer_or_fake_quant_ctr=observer,
        )

    def weight(self) -> QuantizationSpec:
        """Return the spec of weights: int8, one scale for each output channel, no zero points."""
        observer = PerChannelMinMaxObserver.with_args(eps=_SMALLEST)
        if self.training:
            observer = FakeQuantize.with_args(
                observer=MovingAveragePerChannelMinMaxObserver, eps=_SMALLEST
            )
        return QuantizationSpec(
            dtype=torch.int8,
            # vpmaddubsw adds two products of uint8 and int8 in int16: 2 · 255 · 63 = 32130 fits.
            # The codes are symmetric, without -64 and -128, because there are no zero points.
            quant_min=-63 if self.reduced else -127,
            quant_max=63 if self.reduced else 127,
            qscheme=torch.per_channel_symmetric,
            ch_axis=0,
            observer_or_fake_quant_ctr=observer,
        )

    def bias(
        self, node: Node, activation: Node, weight: Node, values: torch.Tensor | None
    ) -> DerivedQuantizationSpec:
        """Return the spec of a bias: int32, with the product of the scales of the operands.

        Args:
            node: The product or convolution.
            activation: Its first operand.
            weight: Its second operand.
            values: The bias, if it is a parameter. Where it does not fit into int32, its scale is
                larger: the layer is then computed in float32.
        """
        return DerivedQuantizationSpec(
            derived_from=[(activation, node), (weight, node)],
            derive_qparams_fn=functools.partial(_scales_of_sums, values),
            dtype=torch.int32,
            quant_min=_INT32.min,
            quant_max=_INT32.max,
            qscheme=torch.per_channel_symmetric,
            ch_axis=0,
        )


def _scales_of_sums(
    bias: torch.Tensor | None, observers: list[Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    (activation, _), (weight, _) = (observer.calculate_qparams() for observer in observers)
    scales = activation.to(torch.float32) * weight.to(torch.float32)
    # A bias that is computed has no known size: its scale cannot be adapted to it.
    if bias is not None:
        scales = torch.maximum(scales, bias.detach().abs().to(scales) / _LARGEST_BIAS)
    return scales, torch.zeros_like(scales, dtype=torch.int64)
