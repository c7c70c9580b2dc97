"""Registered lowerings: their names, their form, and what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.errors import LoweringError, RegistrationError

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Sine(torch.nn.Module):
    """One op, and another that reads its result."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2


class Largest(torch.nn.Module):
    """An op of two results."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = torch.topk(x, 2)
        return values + 1, indices


class LargestValues(torch.nn.Module):
    """An op of two results, one of which is read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(x, 2)[0]


def converted(name: Any, lowering: Any, model: torch.nn.Module) -> coreai_onnx.OnnxProgram:
    converter = coreai_onnx.TorchConverter()
    converter.register_torch_lowering(name, allow_override=True)(lowering)
    return converter.add_exported_program(torch.export.export(model, (X,))).to_onnx()


@pytest.mark.parametrize(
    ("lowering", "message"),
    [
        (lambda op, self: (op.Sin(self),), "returned a tuple for its result"),
        (lambda op, self: [op.Sin(self)], "returned a list for its result"),
        (lambda op, self: np.zeros((3, 4)), r"a ndarray for its result: op.const\(...\) makes"),
        (lambda op, self: X, r"a Tensor for its result: op.const\(...\) makes a value"),
        (lambda op, self: 1.0, r"a float for its result: op.const\(...\) makes a value"),
        (lambda op, self: None, "returned None for its result"),
        (lambda op, self: op.Cast(self, to=7), "INT64 for its result, which is FLOAT"),
        (lambda op, self: op.Unsqueeze(self, 0), "made rank 3, torch says 2"),
        (lambda op, self: 1 / 0, "ZeroDivisionError"),
        (lambda op: op.Constant(value_float=1.0), "does not take its arguments"),
        (lambda op, self, other: self, r"those of the schema, aten::sin\(Tensor self\)"),
    ],
)
def test_a_wrong_result_is_an_error_of_the_op_itself(
    lowering: Callable[..., Any], message: str
) -> None:
    with pytest.raises(LoweringError, match=message) as caught:
        converted("aten::sin.default", lowering, Sine())
    assert "sin" in str(caught.value).splitlines()[0]
    assert "please report" not in str(caught.value)
    assert "torch.sin(x) * 2" in str(caught.value)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda op, x: op.Relu(x), "returned a Value for 2 results"),
        (lambda op, x: (op.Relu(x),), "returned 1 value for 2 results"),
        (lambda op, x: (x, x, x), "returned 3 values for 2 results"),
        (lambda op, x: None, "returned None for 2 results"),
        (lambda op, x: (x, None), "returned None for result 1"),
        (lambda op, x: (x, x), "FLOAT for result 1, which is INT64"),
    ],
)
def test_each_of_several_results_is_checked(result: Any, message: str) -> None:
    def lowering(op: Any, self: Any, *_: Any, **__: Any) -> Any:
        return result(op, self)

    with pytest.raises(LoweringError, match=rf"aten.topk.default: .*{message}"):
        converted("aten::topk.default", lowering, Largest())


def test_a_result_that_nothing_reads_may_be_none() -> None:
    def lowering(op: Any, self: Any, *_: Any, **__: Any) -> Any:
        return op.Slice(self, np.array([0]), np.array([2]), np.array([1])), None

    program = converted("aten::topk.default", lowering, LargestValues())
    assert np.array_equal(np.asarray(program.run(X)[0]), X[:, :2].numpy())


def test_an_operator_that_onnx_lacks() -> None:
    with pytest.raises(LoweringError, match="ONNX has no operator Foo\n") as caught:
        converted("aten::sin.default", lambda op, self: op.Foo(self), Sine())
    assert "opset_version" not in str(caught.value)


def test_an_op_is_also_its_name() -> None:
    program = converted(torch.ops.aten.sin.default, lambda op, self: op.Sin(self), Sine())
    assert [node.op_type for node in program.model.graph] == ["Sin", "Mul"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aten::topk", 'no overload .*: use "aten::topk.default"'),
        ("my_lib::my_op", 'no overload .*: use "my_lib::my_op.default"'),
        ("aten::add.tensor", 'no overload that add has .*: use "aten::add.Tensor"'),
        ("aten::relu.default ", r"not of the form namespace::op\.overload"),
        (torch.ops.aten.relu, r"not of the form namespace::op\.overload"),
        (None, r"not of the form namespace::op\.overload"),
        (5, r"not of the form namespace::op\.overload"),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_one(name: Any, message: str) -> None:
    with pytest.raises(RegistrationError, match=message):
        coreai_onnx.TorchConverter().register_torch_lowering(name)


def coreai_torch_form(values_map: dict[str, ir.Value], node: torch.fx.Node, loc: Any) -> Any:
    """Lower a node as coreai-torch's callbacks do."""
    return values_map[node.args[0].name]  # type: ignore[union-attr]


@pytest.mark.parametrize("function", [coreai_torch_form, lambda values, node, loc: None])
def test_a_callback_of_coreai_torch_is_recognized(function: Any) -> None:
    register = coreai_onnx.TorchConverter().register_torch_lowering("my_lib::my_op.default")
    with pytest.raises(RegistrationError, match=r"\(values_map, node, loc\): write fn\(op, x, "):
        register(function)


def test_a_lowering_is_a_function() -> None:
    register = coreai_onnx.TorchConverter().register_torch_lowering("my_lib::my_op.default")
    with pytest.raises(RegistrationError, match="a lowering is a function"):
        register(5)  # type: ignore[type-var]
