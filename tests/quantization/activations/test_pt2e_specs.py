"""Ranges and dtypes of quantized tensors."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.quantization.activations.pt2e_specs import Specs


@pytest.mark.parametrize("training", [False, True])
def test_activations_use_all_bytes(training: bool) -> None:
    spec = Specs(training=training).activation()
    assert (spec.dtype, spec.quant_min, spec.quant_max) == (torch.uint8, 0, 255)
    observer = spec.observer_or_fake_quant_ctr(
        dtype=spec.dtype, quant_min=0, quant_max=255, qscheme=spec.qscheme
    )
    observer(torch.tensor([-0.5, 2.05]))
    scale, zero = observer.calculate_qparams()
    torch.testing.assert_close(scale, torch.tensor([0.01]), atol=1e-4, rtol=0)
    assert int(zero) == 50


@pytest.mark.parametrize(("reduced", "limit"), [(False, 127), (True, 63)])
def test_weights_have_a_scale_per_channel(reduced: bool, limit: int) -> None:
    spec = Specs(reduced=reduced).weight()
    observer = spec.observer_or_fake_quant_ctr(
        dtype=spec.dtype,
        quant_min=spec.quant_min,
        quant_max=spec.quant_max,
        qscheme=spec.qscheme,
        ch_axis=0,
    )
    observer(torch.tensor([[1.0, -limit], [2 * limit, 0]]))
    scale, zero = observer.calculate_qparams()
    torch.testing.assert_close(scale, torch.tensor([1.0, 2.0]))
    assert not zero.any()
