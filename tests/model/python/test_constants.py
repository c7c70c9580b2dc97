"""Which constants are written in place."""

from __future__ import annotations

import onnx_ir as ir

from coreai_onnx.model.python.constants import Constants, constant_of
from coreai_onnx.model.python.layout import flat
from tests.support.small_models import parse

MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[n] x) => (float[n] y)
<int64[2] shape = {0, -1}, float[5] five = {1.0, 2.0, 3.0, 4.0, 5.0}, float[1] unused = {1.0}>
{ axes = Constant <value_ints = [1]>()  a = Unsqueeze(x, axes)  b = Reshape(a, shape)
  y = Add(b, five) }"""


def test_small_ones_are_literals_and_others_weights() -> None:
    model = parse(MODEL)
    constants = Constants(model)
    texts = {}
    for node in model.graph:
        for value in node.inputs:
            known = constants.of(value)
            if known is not None and value is not None:
                texts[value.name] = known.text and flat(known.text)
    assert texts == {"axes": "[1]", "shape": "[0, -1]", "five": None}
    assert set(constants.weights) == {"five", "unused"}
    assert constants.is_literal_node(model.graph.node(0))


def test_names_within_a_module() -> None:
    model = parse(MODEL)
    value = model.graph.initializers.pop("five")
    value.name = "layers.0.five"
    model.graph.register_initializer(value)
    constants = Constants(model)
    assert constants.relative(value, ("layers.0",)) == "w:five"
    assert constants.relative(value, ("layers.1",)) is None
    assert constants.under(("layers.0",), [value])
    assert not constants.under((), [model.graph.inputs[0]])


def test_constants_that_are_no_tensors() -> None:
    reference = ir.node("Constant", [])
    reference.attributes.add(ir.RefAttr("value_ints", "axes", ir.AttributeType.INTS))
    assert constant_of(reference) is None
    assert constant_of(ir.node("Constant", [], {"value_ints": [1]})) is not None
