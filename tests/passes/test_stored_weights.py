"""Weights of 16 bits with a Cast: the numbers stay the same to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from coreai_onnx.passes.stored_weights import SMALLEST, store_weights_as
from tests.passes.rewriting import parse, run, shown

TEXT = """
main (float[n, 16] x, float[16, 16] w) => (float[n, 16] y) { y = MatMul (x, w) }
"""
SIXTEEN_BITS = {"float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}


def model_with(weight: np.ndarray, text: str = TEXT) -> ir.Model:
    model = parse(text)
    value = model.graph.inputs.pop()
    value.const_value = ir.tensor(weight, name="w")
    model.graph.register_initializer(value)
    return model


def weight_of(dtype: str) -> np.ndarray:
    random = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    return random.astype(SIXTEEN_BITS[dtype].numpy()).astype(np.float32)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_a_weight_is_stored_in_16_bits(dtype: str) -> None:
    weight, x = weight_of(dtype), np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32)
    model = model_with(weight)
    assert store_weights_as(model, dtype) == 1
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    (stored,) = model.graph.initializers.values()
    assert (stored.name, stored.dtype) == ("w", SIXTEEN_BITS[dtype])
    assert [node.op_type for node in model.graph] == ["Cast", "MatMul"]
    (actual,), (expected,) = run(model, {"x": x}), run(model_with(weight), {"x": x})
    assert actual.tobytes() == expected.tobytes()
    assert store_weights_as(model, dtype) == 0, "a second call changes nothing"
    (initializer,) = ir.to_proto(model).graph.initializer
    assert len(initializer.raw_data) == weight.nbytes // 2


def test_onnxruntime_converts_when_it_loads(tmp_path: Path) -> None:
    """No Cast is left, so the products read prepacked weights of float32."""
    model = model_with(weight_of("bfloat16"))
    store_weights_as(model, "bfloat16")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    loaded = onnx.load(tmp_path / "loaded.onnx")
    assert "Cast" not in {node.op_type for node in loaded.graph.node}
    assert [one.data_type for one in loaded.graph.initializer] == [onnx.TensorProto.FLOAT]


@pytest.mark.parametrize(
    ("weight", "dtype"),
    [
        (np.full((16, 16), 1.001, np.float32), "bfloat16"),  # needs more bits
        (np.full((16, 16), 1e6, np.float32), "float16"),  # too large
        (np.full((16, 16), 2.0**-30, np.float32), "float16"),  # too small
        (np.full((16, 16), 1.0, np.float64), "float16"),
    ],
)
def test_what_stays(weight: np.ndarray, dtype: str) -> None:
    text = TEXT.replace("float", "double") if weight.dtype == np.float64 else TEXT
    model = model_with(weight, text)
    before = shown(model)
    assert store_weights_as(model, dtype) == 0
    assert shown(model) == before


def test_small_weights_and_values_of_the_interface_stay() -> None:
    """A default value of an input, and a weight that is an output too."""
    model = parse("""
    main (float[64] a, float[64] w, float[1] b) => (float[64] y, float[64] w)
    { t = Add (a, w)  y = Mul (t, b) }
    """)
    for value in list(model.graph.inputs):
        value.const_value = ir.tensor(np.ones(value.shape.numpy(), np.float32), name=value.name)
        model.graph.register_initializer(value)
    del model.graph.inputs[1:]
    assert SMALLEST > 1
    assert store_weights_as(model, "float16") == 0
