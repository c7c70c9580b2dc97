from __future__ import annotations

import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.passes import open_model
from coreai_onnx.passes.engine.match import (
    axes_of,
    cast_to,
    composite,
    made_by,
    maker,
    scalar_of,
    scaled,
)
from tests.passes.rewriting import parse

TEXT = """main (float[2, 3] x) => (float[2, 3] y) <float two = {2}, int64[1] ax = {-1}> {
  a = Mul (two, x)
  b = Cast <to = 1> (a)
  m = ReduceMean <keepdims = 1> (b, ax)
  p, q = Split <axis = 1, num_outputs = 2> (b)
  y = Div (b, m)
}"""


@pytest.fixture
def nodes() -> dict[str, gs.Node]:
    return {node.op: node for node in open_model(parse(TEXT)).nodes}


def test_makers(nodes: dict[str, gs.Node]) -> None:
    cast, split = nodes["Cast"], nodes["Split"]
    assert maker(cast.inputs[0]) is nodes["Mul"]
    assert maker(nodes["Mul"].inputs[0]) is None
    assert made_by(cast.inputs[0], "Mul", "Add") is nodes["Mul"]
    assert made_by(cast.inputs[0], "Add") is None
    assert made_by(split.outputs[0], "Split") is split
    assert made_by(split.outputs[1], "Split") is None


def test_constants(nodes: dict[str, gs.Node]) -> None:
    product = nodes["Mul"]
    assert scalar_of(product.inputs[0]) == 2.0
    assert scalar_of(product.inputs[1]) is None
    tensor, factor = scaled(product)
    assert (tensor.name, factor) == ("x", 2.0)
    assert axes_of(nodes["ReduceMean"]) == [-1]
    assert (cast_to(nodes["Cast"]), cast_to(product), cast_to(None)) == (1, None, None)


def test_composites_are_told_from_their_variants() -> None:
    node = gs.Node("rms_norm.wide_scale", domain="ai.coreai")
    assert composite(node, "layer_norm", "rms_norm") == "wide_scale"
    assert composite(gs.Node("rms_norm", domain="ai.coreai"), "rms_norm") == ""
    assert composite(gs.Node("rms_norm", domain="ai.coreai.user"), "rms_norm") is None
    assert composite(None, "rms_norm") is None
