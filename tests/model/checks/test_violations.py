"""Tests of violations of the ONNX standard in a model, after each pass too."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

from coreai_onnx.errors import ComparisonError, Where
from coreai_onnx.model.checks.violations import (
    TORCH_OP,
    WHERE,
    check_of,
    new_violations,
    violations,
)
from coreai_onnx.model.provenance.debug_info import CLASS, SCOPE, SOURCE
from tests.support.small_models import linear_model, parse

HEAD = '<ir_version: 10, opset_import: ["": 23, "d": 1, "com.microsoft": 1]>\n'
FUNCTION = """
<domain: "d", opset_import: ["": 23, "d": 1]> add <bits: int> (a, b) => (c) { c = Add (a, b) }
<domain: "d", opset_import: ["": 23, "d": 1]> twice (a, b) => (c) { e = Neg (a)  c = d.add (e, b) }
"""


def model(body: str, functions: str = "") -> ir.Model:
    inputs = "float[2, n] x, int64[2, n] i, bool c"
    return parse(f"{HEAD}main ({inputs}) => (float[2, n] y) {{ {body} }}\n{functions}")


@pytest.mark.parametrize(
    "body",
    [
        "y = Neg (x)",
        "y = com.microsoft.Anything (x, i)",
        "a = com.microsoft.Anything (x)  y = Add (a, x)",
        "y = d.add (x, x)",
        "a = d.add (i, i)  b = Cast <to = 1> (a)  y = d.twice (b, x)",
        (
            "y = If (c) <then_branch = t () => (float[2, n] u) { u = d.twice (x, x) }, "
            "else_branch = e () => (float[2, n] v) { w = com.microsoft.Any (x)  v = Add (w, x) }>"
        ),
    ],
)
def test_models_that_break_no_rule(body: str) -> None:
    assert violations(model(body, FUNCTION)) == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("y = Nonsense (x)", "Nonsense, node '', at opset 23: No Op registered for Nonsense"),
        (
            "y = Add (x, i)",
            "Add(float[2, n], int64[2, n]), node '', at opset 23: B has inconsistent type",
        ),
        ("y = d.add (x, i)", "Add(float[2, n], int64[2, n]), node '' in the function d::add"),
        ("y = d.twice (x, i)", "Add(float[2, n], int64[2, n]), node '' in the function d::add"),
        ("y = d.add (x, x, c)", "d::add(float[2, n], float[2, n], bool[]), node '', at opset 1"),
        ("a = Neg (x)  y = d.add (i, i)", "'y' is int64, declared as float"),
        (
            ("y = If (c) <then_branch = t () => (u) { u = d.twice (x, i) }, "
            "else_branch = e () => (v) { v = Neg (x) }>"),
            "in the function d::add",
        ),
        (
            ("y = If (c) <then_branch = t () => (u) { u = Conv (x) }, "
            "else_branch = e () => (v) { v = Neg (x) }>"),
            "Conv, node '', at opset 23: schema(::Conv:22) has input size 1",
        ),
    ],
)  # fmt: skip
def test_models_that_break_a_rule(body: str, text: str) -> None:
    found = violations(model(body, FUNCTION))
    assert len(found) == 1
    assert text in str(found[0])


def test_a_function_is_typed_for_each_kind_of_call() -> None:
    (found,) = violations(model("a = d.add (i, i)  b = d.add (x, i)  y = d.add (x, x)", FUNCTION))
    assert "Add(float[2, n], int64[2, n])" in str(found)
    assert found.fault.callers[0].outputs[0].name == "b"


def test_the_place_is_that_of_the_node_or_of_its_caller() -> None:
    wrong = model("y = d.twice (x, i)", FUNCTION)
    wrong.graph[0].metadata_props.update({SCOPE: "mlp", CLASS: "MLP", SOURCE: "m.py:3"})
    wrong.graph[0].meta[TORCH_OP] = "aten.outer.default"
    (found,) = violations(wrong)
    assert found.where == Where("mlp", "MLP", "m.py:3")
    assert found.torch_op == "aten.outer.default"
    wrong.graph[0].meta[WHERE] = Where("mlp", "MLP", "m.py:3", "x.outer(i)")
    assert found.where == Where("mlp", "MLP", "m.py:3", "x.outer(i)")


def test_weights_are_not_read() -> None:
    def fail() -> ir.TensorProtocol:
        raise AssertionError("read")

    good = model("y = Add (x, x)")
    lazy = ir.LazyTensor(fail, dtype=ir.DataType.FLOAT, shape=ir.Shape([2, 1]), name="w")
    weight = ir.Value(name="w", const_value=lazy)
    good.graph.register_initializer(weight)
    good.graph[0].replace_input_with(1, weight)
    assert violations(good) == []


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        ("y = Neg (x)", "y = Conv (x)", 1),
        ("y = Conv (x)", "y = Conv (x)", 0),
        ("y = Conv (x)", "a = Conv (x)  y = Nonsense (a)", 1),
        ("y = Add (x, i)", "y = Mul (x, i)", 0),  # what contradicted may do so in another op
        ("y = Add (x, i)", "a = Add (x, i)  y = Nonsense (a)", 1),
    ],
)
def test_what_was_wrong_before_is_not_new(before: str, after: str, new: int) -> None:
    assert len(new_violations(model(before), model(after))) == new


class Named:
    """A verifier that reports its own name."""

    def __init__(self, name: object) -> None:
        self.name = name

    def check(self, model: ir.Model) -> Callable[[ir.Model], str]:
        del model
        return lambda _: str(self.name)


def said(verify: object) -> str:
    model = linear_model()
    check = check_of(verify, model, Named)
    assert check is not None
    return check(model)


def test_inputs_verifiers_and_examples() -> None:
    assert said(Named("own")) == "own"
    assert said((1, 2)) == "(1, 2)"
    assert said(True) == "None"


def test_no_check() -> None:
    assert check_of(None, linear_model(), Named) is None
    assert check_of(False, linear_model(), Named) is None


def test_no_record() -> None:
    with pytest.raises(ComparisonError, match="there is no record"):
        check_of(True, linear_model(), None)
