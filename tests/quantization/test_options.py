"""The options of a quantization."""

from __future__ import annotations

import re

import numpy as np
import pytest

from coreai_onnx.bodies.quantized import FewBitBodies
from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization.options import quantize_entrypoints, rules_of
from tests.quantization.example_weights import heavy_tailed, linear


def test_options_select_scheme_and_rules() -> None:
    models = {"main": linear(heavy_tailed(8, 32))}
    options = {"method": "rtn", "symmetric": True, "scale_dtype": "float32", "minimum_size": 0}
    (layer,) = quantize_entrypoints(models, "", 3, 16, FewBitBodies, **options)[
        "main"
    ].report.layers
    scheme = layer.scheme
    assert (scheme.bits, scheme.group_size, scheme.method) == (3, 16, "rtn")
    assert (scheme.symmetric, scheme.scale_dtype) == (True, "float32")


def test_integers_of_numpy_are_integers() -> None:
    models = {"main": linear(heavy_tailed(8, 32))}
    made = quantize_entrypoints(
        models, "", np.int64(4), np.int32(16), FewBitBodies, method="rtn", minimum_size=0
    )
    (layer,) = made["main"].report.layers
    assert (layer.scheme.bits, layer.scheme.group_size) == (4, 16)


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(
        QuantizationError,
        match="there is no option 'group'; there are activation_bits, activations",
    ):
        quantize_entrypoints(
            {"main": linear(heavy_tailed(8, 32))}, "", 4, 32, FewBitBodies, group=8
        )


def test_options_are_checked_without_a_model() -> None:
    with pytest.raises(QuantizationError, match="bits=5; choose from 8, 4, 3, 2"):
        rules_of(5)


def test_calibration_data_is_evaluation_data_too_and_may_be_an_iterator() -> None:
    weight, x = heavy_tailed(64, 64), np.random.default_rng(0).normal(size=(6, 5, 64))
    calls = [(call.astype(np.float32),) for call in x]
    options = {"method": "gptq", "minimum_size": 0}
    plain, lazy, own = (
        quantize_entrypoints(
            {"main": linear(weight)}, "main", 4, 32, FewBitBodies, **options, **data
        )["main"]
        for data in (
            {"calibration": calls},
            {"calibration": iter(calls)},
            {"calibration": calls, "evaluation": calls[5:]},
        )
    )
    assert plain.report.layers == lazy.report.layers == own.report.layers
    assert plain.report.outputs == lazy.report.outputs
    assert [change.name for change in plain.report.outputs] == ["y"]
    assert plain.report.outputs != own.report.outputs


def test_models_stay_as_they_are() -> None:
    model = linear(heavy_tailed(64, 64))
    done = quantize_entrypoints({"main": model}, "", 4, 32, FewBitBodies, minimum_size=0)["main"]
    assert [node.op_type for node in model.graph] == ["Transpose", "MatMul"]
    assert [node.op_type for node in done.model.graph] == ["linear_nbits.zero_points"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 4.0}, "bits=4.0; choose from 8, 4, 3, 2"),
        ({"symmetric": "yes"}, "symmetric='yes'; give True or False"),
        ({"embeddings": 0}, "embeddings=0; give True or False"),
        ({"minimum_size": -1}, "minimum_size=-1; give a number of elements"),
        ({"minimum_size": 1.5}, "minimum_size=1.5; give a number of elements"),
        ({"rules": ["lm_head"]}, "rules is a list\n  give a mapping of patterns to bits"),
        ({"rules": {5: 4}}, "the pattern 5 is a int, not a text"),
        ({"rules": {"*": {"symmetric": 1}}}, "symmetric=1; give True or False"),
        ({"metrics": [len]}, "metrics is a list\n  give a mapping of names to functions"),
        ({"skip": 5}, "skip=5; give a list of patterns"),
        ({"skip": [5]}, "the pattern 5 is a int, not a text"),
        ({"activation_bits": 16}, "activation_bits=16; choose from 0, 8"),
        ({"activation_bits": 4, "activations": True}, "activation_bits=4; choose from 0, 8, 16"),
        ({"calibration_method": "kl"}, "calibration_method='kl'; choose from minmax"),
        ({"workers": 0}, "workers=0; give a number from 1 to 1024"),
        ({"workers": True}, "workers=True; give a number from 1 to 1024"),
        ({"percentile": 5}, "percentile=5; give a number above 50, at most 100"),
        ({"calibration": 5}, "calibration must be a list of the inputs of calls, got int"),
        (
            {"evaluation": "x"},
            "evaluation must be a list of the inputs of calls, got a text",
        ),
        ({"calibration": {"x": []}}, "there is no entrypoint 'x'; there are main"),
    ],
)
def test_options_of_another_kind_are_errors(options: dict[str, object], message: str) -> None:
    arguments = {"bits": 4, "group_size": 32, **options}
    with pytest.raises(QuantizationError, match=re.escape(message)):
        quantize_entrypoints(
            {"main": linear(heavy_tailed(64, 64))}, "main", bodies_of=FewBitBodies, **arguments
        )
