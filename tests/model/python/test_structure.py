"""Descriptions that are equal for equal computations."""

from __future__ import annotations

import onnx_ir as ir

from coreai_onnx.model.python.constants import Constants
from coreai_onnx.model.python.structure import captured, described, operands
from tests.support.small_models import parse

TWINS = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] x, bool c) => (float[n] y)
{ a = LeakyRelu <alpha = 0.1>(x)
  b = If (c) <then_branch = t () => (float[n] p) { p = Add(a, x) },
              else_branch = e () => (float[n] q) { q = Neg(a) }>
  d = LeakyRelu <alpha = 0.1>(b)
  y = If (c) <then_branch = t2 () => (float[n] r) { r = Add(d, b) },
              else_branch = e2 () => (float[n] s) { s = Neg(d) }> }"""


def test_twins_have_one_description() -> None:
    model = parse(TWINS)
    constants = Constants(model)
    nodes = list(model.graph)
    left, outside = described(nodes[:2], (), constants)
    right, others = described(nodes[2:], (), constants)
    assert left == right
    assert [value.name for value in outside] == ["x", "c"]
    assert [value.name for value in others] == ["b", "c"]


def test_another_attribute_is_another_description() -> None:
    model = parse(TWINS.replace("0.1>(b)", "0.2>(b)"))
    constants = Constants(model)
    nodes = list(model.graph)
    assert described(nodes[:2], (), constants)[0] != described(nodes[2:], (), constants)[0]


def test_branches_take_values_from_outside() -> None:
    node = parse(TWINS).graph.node(1)
    assert [value.name for value in operands(node)] == ["c", "a", "x", "a"]
    branch = node.attributes["then_branch"].as_graph()
    assert isinstance(branch, ir.Graph)
    assert [value.name for value in captured(branch)] == ["a", "x"]
