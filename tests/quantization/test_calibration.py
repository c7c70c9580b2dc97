"""Second moments of the inputs of products: in the main graph, in functions, in parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization import calibration
from coreai_onnx.quantization.calibration import Probes, second_moments
from tests.quantization.example_weights import experts, heavy_tailed, linear
from tests.support.small_models import parse
from tests.support.tolerances import assert_close

NESTED = """<ir_version: 10, opset_import: ["": 21, "ai.coreai.module": 1]>
agraph (float[n, 2] x) => (float[n, 2] y)
<float[2, 2] a = {1.0, 2.0, 3.0, 4.0}, float[2, 2] b = {1.0, -1.0, 0.5, 2.0},
 float[2, 2] c = {2.0, 0.0, 0.0, 2.0}>
{ h = ai.coreai.module.Outer(x, a, b) g = Relu(h) y = ai.coreai.module.Outer(g, b, c) }
<domain: "ai.coreai.module", opset_import: ["": 21, "ai.coreai.module": 1]>
Outer (x, v, w) => (y) { h = ai.coreai.module.Inner(x, v) n = Neg(h) y = MatMul(n, w) }
<domain: "ai.coreai.module", opset_import: ["": 21]>
Inner (x, w) => (y) { s = Add(x, x) y = MatMul(s, w) }
"""
CALLS = [np.array([[1.0, 2.0]], np.float32), np.array([[0.5, -1.0], [3.0, 1.0]], np.float32)]


def squares(*inputs: np.ndarray) -> np.ndarray:
    rows = np.concatenate(inputs)
    return rows.T @ rows


def test_the_input_of_the_model() -> None:
    model = linear(heavy_tailed(6, 4))
    calls = [np.random.default_rng(i).normal(size=(i + 2, 4)).astype(np.float32) for i in range(3)]
    for feeds in ([{"x": x} for x in calls], [(x,) for x in calls], ([x] for x in calls)):
        found = second_moments(model, {"layer.weight": (6, 4)}, feeds)
        assert_close(found["layer.weight"], squares(*calls))
    assert len(model.graph.outputs) == 1


@pytest.mark.parametrize("sweep", [1 << 20, 16])
def test_values_in_functions_of_each_call(sweep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SWEEP_BYTES", sweep)
    model = parse(NESTED)
    a, b = (model.graph.initializers[name].const_value.numpy() for name in "ab")
    wanted: dict[str, list[np.ndarray]] = {"a": [], "b": [], "c": []}
    for x in CALLS:
        wanted["a"].append(2 * x)
        wanted["b"].append(-(2 * x @ a))
        g = np.maximum(-(2 * x @ a) @ b, 0)
        wanted["b"].append(2 * g)
        wanted["c"].append(-(2 * g @ b))
    found = second_moments(model, dict.fromkeys("abc", (2, 2)), [{"x": x} for x in CALLS])
    for name, values in wanted.items():
        assert_close(found[name], squares(*values), message=name)
    assert len(model.graph.outputs) == 1
    assert all(len(function.outputs) == 1 for function in model.functions.values())


@pytest.mark.parametrize("function", [True, False])
@pytest.mark.parametrize("sweep", [1 << 20, 16])
def test_experts_have_moments_of_the_rows_that_select_them(
    function: bool, sweep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "SWEEP_BYTES", sweep)
    model = experts(heavy_tailed(12, 4).reshape(3, 4, 4), function=function)
    rng = np.random.default_rng(0)
    feeds = [
        {
            "x": rng.normal(size=(5, 2, 4)).astype(np.float32),
            "chosen": np.array([0, 2, 2, 0, i * 2]),
        }
        for i in range(2)
    ]
    found = second_moments(model, {"w": (3, 4, 4)}, feeds)["w"]
    for expert in range(3):
        rows = [2 * f["x"][f["chosen"] == expert].reshape(-1, 4) for f in feeds]
        assert_close(found[expert], squares(*rows))
    assert not found[1].any()


def test_inputs_that_several_experts_of_a_token_share_count_for_each() -> None:
    moments = np.zeros((3, 2, 2), np.float32)
    rows = np.array([[[[1.0, 2.0]]], [[[3.0, 5.0]]]], np.float32)  # [tokens, 1, 1, K]
    calibration._add_by_expert(moments, rows, np.array([[0, 2], [2, 1]]))
    first, second = rows.reshape(2, 1, 2)
    for found, wanted in zip(
        moments, (squares(first), squares(second), squares(first, second)), strict=True
    ):
        assert_close(found, wanted)


def test_products_in_branches_are_missing() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n, 2] x, bool c) => (float[n, 2] y)
    <float[2, 2] w = {1.0, 2.0, 3.0, 4.0}>
    { y = If<then_branch = yes () => (float[n, 2] a) { r = Relu(x) a = MatMul(r, w) },
             else_branch = no () => (float[n, 2] b) { b = Identity(x) }>(c) }""")
    probes = Probes(model, ["w"])
    assert not probes.inputs["w"]
    assert second_moments(model, {"w": (2, 2)}, [(CALLS[0], True)]) == {}


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ([], "there is no calibration data\n  give the inputs"),
        ([{"x": np.ones((1, 3), np.float32)}], "calibration call 1: .*x"),
        ([{"x": CALLS[0]}, {"y": CALLS[0]}], "calibration call 2: .*y"),
        ([(CALLS[0].astype(np.float64),)], "calibration call 1: .*float64"),
        ([CALLS[0]], "calibration call 1: is a ndarray, not a mapping"),
        ([(np.full((1, 2), np.nan, np.float32),)], "call 1: the input of the product with 'a'"),
    ],
)
def test_bad_data_is_an_error(feeds, message) -> None:
    with pytest.raises(QuantizationError, match=message):
        second_moments(parse(NESTED), {"a": (2, 2)}, feeds)


class Pair(torch.nn.Module):
    """A layer in a dtype; its input and what is added to it are passed in a dictionary."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64, dtype=dtype)

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.layer(given["x"]) + given["y"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bits", [4, 8])
def test_calls_of_the_module(dtype: torch.dtype, bits: int) -> None:
    torch.manual_seed(0)
    module = Pair(dtype).eval()
    calls = [
        ({"x": torch.randn(3, 64, dtype=dtype), "y": torch.randn(3, 64, dtype=dtype)},)
        for _ in range(4)
    ]
    calls[0][0]["x"].requires_grad_()
    program = coreai_onnx.convert(module, calls[1])
    program.quantize(bits, activations=bits == 8, method="gptq", calibration=calls)
    actual, expected = program.run(*calls[0])[0], module(*calls[0]).detach().float().numpy()
    assert np.abs(actual.astype(np.float32) - expected).max() < (0.04 if bits == 8 else 0.3)
