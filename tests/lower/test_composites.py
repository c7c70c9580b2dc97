"""Calls of composites, as they are collected."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower.builder import OpBuilder
from coreai_onnx.lower.composite_checks import CompositeCallError
from coreai_onnx.lower.composites import CompositeCalls
from coreai_onnx.lower.values import dims_of, dtype_of
from tests.lower.building import Building


def test_a_call_writes_all_attributes_and_the_version() -> None:
    building, calls = Building(), CompositeCalls()
    op = OpBuilder(building.op.scope, 23, calls)
    x = building.input("x", torch.float16, (2, 4))
    weight = building.input("weight", torch.float16, (4,))
    result = op.composite("rms_norm", [x, weight], eps=0.5)
    (call,) = calls.calls
    assert call.node.domain == "ai.coreai"
    assert call.node.op_type == "rms_norm"
    assert call.attributes["eps"] == 0.5
    assert "version" in call.attributes
    assert dims_of(result) == (2, 4)
    assert dtype_of(result) == torch.float16


def test_an_attribute_the_composite_lacks() -> None:
    building = Building()
    op = OpBuilder(building.op.scope, 23, CompositeCalls())
    x = building.input("x", torch.float32, (2, 4))
    with pytest.raises(CompositeCallError, match="rms_norm: there is no attribute epsilon"):
        op.composite("rms_norm", [x, None], epsilon=1.0)


def test_a_body_spells_composites_out() -> None:
    building = Building()
    x = building.input("x", torch.float32, (2, 4))
    with pytest.raises(LoweringError, match="inside a composite body"):
        building.op.composite("rms_norm", [x, None])
