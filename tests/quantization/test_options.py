"""The options of a quantization."""

from __future__ import annotations

import pytest

from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization.options import quantize_entrypoints
from tests.quantization.weights import heavy_tailed, linear


def test_options_select_scheme_and_rules() -> None:
    models = {"main": linear(heavy_tailed(8, 32))}
    options = {"method": "rtn", "symmetric": True, "scale_dtype": "float32", "minimum_size": 0}
    (layer,) = quantize_entrypoints(models, "", 3, 16, **options)["main"].layers
    scheme = layer.scheme
    assert (scheme.bits, scheme.group_size, scheme.method) == (3, 16, "rtn")
    assert (scheme.symmetric, scheme.scale_dtype) == (True, "float32")


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(
        QuantizationError,
        match="there is no option 'group'; there are activation_bits, activations",
    ):
        quantize_entrypoints({"main": linear(heavy_tailed(8, 32))}, "", 4, 32, group=8)
