"""ONNX models as functions: opsets, constants and outputs."""

from __future__ import annotations

import pytest
import torch

import coreai_onnx
from coreai_onnx.delegation import OnnxModule
from coreai_onnx.errors import ConversionError
from tests.delegation.foreign_models import parsed, with_functions
from tests.support.tolerances import assert_close


@pytest.mark.parametrize("opset", [18, 23, 25])
def test_the_file_is_converted_to_the_opset(tmp_path, opset: int) -> None:
    # ReduceMean has its axes as an input since opset 18, and Pad other modes since 19.
    source = parsed(
        "(float[n, 4] x) => (float[n, 1] y)", "a = ReduceMean<axes=[1]>(x) y = Relu(a)", opset=13
    )
    x = torch.randn(3, 4)
    converted = coreai_onnx.convert(OnnxModule(source), (x,), opset_version=opset)
    assert converted.model.opset_imports[""] == opset
    assert_close(converted.run(x)[0], x.mean(1, keepdim=True).relu())


def test_an_opset_that_does_not_fit_is_an_error() -> None:
    source = parsed("(float[n, 4] x) => (float[n, 4] y)", "y = Gelu(x)", opset=20)
    module = OnnxModule(source, name="gelu")
    with pytest.raises(ConversionError, match="gelu of opset 20 cannot be converted to opset 18"):
        coreai_onnx.convert(module, (torch.ones(2, 4),), opset_version=18)


def test_functions_are_kept_where_all_nodes_keep_their_meaning() -> None:
    module = OnnxModule(with_functions())
    args = torch.randn(2, 16), torch.randn(2)
    for opset in (18, 23):
        converted = coreai_onnx.convert(module, args, opset_version=opset)
        assert "model.0.scaled" in [f.name for f in converted.model.functions.values()]
        assert_close(converted.run(*args)[0], module(*args)[0])


def test_a_node_of_a_branch_that_would_change_is_an_error() -> None:
    source = parsed(
        "(bool c, float[n, 4] x) => (float[n, 1] y)",
        "y = If(c) <then_branch = a() => (float[n, 1] t) { t = ReduceMean<axes=[1]>(x) }, "
        "else_branch = b() => (float[n, 1] e) { e = ReduceMax<axes=[1]>(x) }>",
        opset=13,
    )
    args = torch.tensor(True), torch.randn(2, 4)
    assert_close(OnnxModule(source)(*args), args[1].mean(1, keepdim=True))
    with pytest.raises(ConversionError, match="ReduceMean inside a branch or loop"):
        coreai_onnx.convert(OnnxModule(source), args)


def test_outputs_that_are_inputs_or_equal() -> None:
    source = parsed(
        "(float[n] x) => (float[n] x, float[n] y, float[2] c) <float[2] c = {1, 2}>", "y = Abs(x)"
    )
    x = torch.randn(3)
    converted = coreai_onnx.convert(OnnxModule(source), (x,))
    for found, expected in zip(converted.run(x), (x, x.abs(), torch.tensor([1.0, 2])), strict=True):
        assert_close(found, expected)
