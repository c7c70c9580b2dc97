"""Calls of composites, as they are collected."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from coreai_onnx.errors import DeclarationError, LoweringError
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.nodes.composite_checks import CompositeCallError
from coreai_onnx.lower.nodes.values import dims_of, dtype_of, maybe_dims
from tests.delegation.user_kernels.declared import SCALED
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


def test_outputs_have_the_dims_and_dtypes_that_the_declaration_tells() -> None:
    building = Building()
    op = OpBuilder(building.op.scope, 23, CompositeCalls())
    half, wide = torch.float16, torch.float32
    key, value = (building.input(n, half, (2, 3, 5, 4)) for n in ("query", "key")), (2, 6, 5, 7)
    gate = building.input("g", wide, (2, 6, 5))
    inputs = [*key, building.input("value", half, value), gate, gate]
    state = building.input("state", wide, (2, 6, 4, 7))
    output, last = op.composite_outputs("gated_delta_update", [*inputs, state])
    assert (dims_of(output), dtype_of(output)) == ((2, 5, 6, 7), half)
    assert (dims_of(last), dtype_of(last)) == ((2, 6, 4, 7), wide)
    assert dtype_of(op.composite_outputs("gated_delta_update", inputs)[1]) == half
    x, w = building.input("x", half, (5, 1, 8)), building.input("w", half, (3, 8, 6))
    index = building.input("index", torch.int64, (5,))
    product = op.composite("gather_mm", [x, w, None, index])
    assert dtype_of(product) == half
    assert maybe_dims(product) is None


def test_a_users_composite_has_its_own_domain_and_one_declaration() -> None:
    building, calls = Building(), CompositeCalls()
    op = OpBuilder(building.op.scope, 23, calls)
    x = building.input("x", torch.float32, (2,))
    y = op.composite(SCALED, [x], factor=3.0)
    node = y.producer()
    assert node is not None
    assert (node.domain, node.op_type) == ("ai.coreai.user", "scaled")
    assert node.attributes["factor"].as_float() == 3.0
    with pytest.raises(DeclarationError, match="two composites called scaled"):
        op.composite(dataclasses.replace(SCALED, version=2), [x])
    with pytest.raises(DeclarationError, match="there is no output"):
        op.composite(dataclasses.replace(SCALED, outputs=(), output_dims=()), [x])
