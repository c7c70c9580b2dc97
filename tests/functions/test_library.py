"""Function bodies: equal to the torch reference at every opset and dtype, and named as declared."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.composite_ops import COMPOSITES
from tests.composite_calls import CASES, Case
from tests.lower.checking import run_model
from tests.tolerances import assert_close

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_body_gives_what_the_reference_gives(case: Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(dtype)
    actual = run_model(case.model(dtype, dynamic=True), inputs)
    assert_close(actual, case.expected_outputs(inputs))


@pytest.mark.parametrize("opset", [18, 21, 26])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_body_holds_at_other_opsets(case: Case, opset: int) -> None:
    inputs = case.inputs(torch.float32)
    actual = run_model(case.model(torch.float32, dynamic=True, opset=opset), inputs)
    assert_close(actual, case.expected_outputs(inputs))


def test_one_body_serves_other_shapes() -> None:
    case = next(c for c in CASES if c.label == "causal_gqa")
    model = case.model(torch.float32, dynamic=True, opset=21)
    shapes = ((1, 6, 3, 4), (1, 3, 3, 4), (1, 3, 3, 10))
    other = Case(case.composite, shapes, {**case.attributes, "scale": 8**-0.5})
    inputs = other.inputs(torch.float32)
    (actual,) = run_model(model, inputs)
    assert_close(actual, other.expected(inputs))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_functions_are_declared_named_and_without_overload(case: Case) -> None:
    model = case.model(torch.float32, dynamic=False)
    (function,) = model.functions.values()
    assert function.name == case.composite
    assert function.overload == ""
    assert set(function.attributes) == {
        *(a.name for a in COMPOSITES[case.composite].attributes),
        "version",
    }
    assert all(node.name for node in function.all_nodes())
    assert model.ir_version == 10
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
