from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.passes import open_model
from coreai_onnx.passes.engine.match import (
    attribute_of,
    axes_of,
    cast_to,
    composite,
    constant_of,
    dtype_of,
    input_of,
    ints_of,
    is_standard,
    made_by,
    maker,
    same_known_shape,
    scalar_of,
    scaled,
    shape_of,
    static_shape_of,
)
from tests.passes.rewriting import parse

TEXT = """main (float[2, 3] x) => (float[2, 3] y) <float two = {2}, int64[1] ax = {-1}> {
  a = Mul (two, x)
  b = Cast <to = 1> (a)
  m = ReduceMean <keepdims = 1> (b, ax)
  p, q = Split <axis = 1, num_outputs = 2> (b)
  y = Div (b, m)
}"""


def test_types_and_shapes() -> None:
    known = gs.Variable("a", np.float32, ["n", 4])
    assert dtype_of(known) == np.float32
    assert shape_of(known) == ("n", 4)
    assert static_shape_of(known) is None
    assert static_shape_of(gs.Variable("b", np.float32, [2, 4])) == (2, 4)
    assert (dtype_of(gs.Variable("c")), shape_of(gs.Variable("c"))) == (None, None)
    assert shape_of(gs.Variable("s", np.float32, [2], type="sequence_type")) is None
    assert dtype_of(gs.Constant("k", np.ones(1, ml_dtypes.bfloat16))) == ml_dtypes.bfloat16


def test_equal_names_are_equal_dims_and_unknown_ones_are_not() -> None:
    named = gs.Variable("a", None, ["n", 4])
    assert same_known_shape(named, gs.Variable("b", None, ["n", 4]))
    assert not same_known_shape(named, gs.Variable("b", None, ["m", 4]))
    open_ = gs.Variable("c", None, [None, 4])
    assert not same_known_shape(open_, gs.Variable("d", None, [None, 4]))
    assert not same_known_shape(gs.Variable("e"), gs.Variable("f"))


def test_constants() -> None:
    axes = gs.Constant("axes", np.array([0, -1]))
    assert ints_of(axes) == [0, -1]
    assert ints_of(gs.Constant("f", np.ones(2, np.float32))) is None
    assert ints_of(gs.Variable("v")) is None
    assert constant_of(axes, at_most=1) is None
    assert constant_of(gs.Variable("v")) is None


def test_nodes() -> None:
    node = gs.Node(
        "Clip",
        "n",
        {"k": 1},
        [gs.Variable("x"), gs.Variable.empty()],
        [gs.Variable("y"), gs.Variable.empty()],
    )
    assert is_standard(node, "Clip", "Cast")
    assert not is_standard(gs.Node("Clip", domain="ai.coreai"), "Clip")
    assert input_of(node, 0) is node.inputs[0]
    assert input_of(node, 1) is None
    assert input_of(node, 2) is None
    assert (attribute_of(node, "k", 0), attribute_of(node, "m", 0)) == (1, 0)


@pytest.fixture
def nodes() -> dict[str, gs.Node]:
    return {node.op: node for node in open_model(parse(TEXT)).nodes}


def test_producers(nodes: dict[str, gs.Node]) -> None:
    cast, split = nodes["Cast"], nodes["Split"]
    assert maker(cast.inputs[0]) is nodes["Mul"]
    assert maker(nodes["Mul"].inputs[0]) is None
    assert made_by(cast.inputs[0], "Mul", "Add") is nodes["Mul"]
    assert made_by(cast.inputs[0], "Add") is None
    assert made_by(split.outputs[0], "Split") is split
    assert made_by(split.outputs[1], "Split") is None


def test_producers_of_constants(nodes: dict[str, gs.Node]) -> None:
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


def test_a_constant_of_more_axes_is_no_scalar() -> None:
    """It would give its axes to the result."""
    x, open_ = gs.Variable("x", np.float32, [4]), gs.Variable("open")
    for rank in range(4):
        two = gs.Constant("two", np.full((1,) * rank, 2.0, np.float32))
        assert scalar_of(two) == 2.0
        assert scalar_of(two, x) == (2.0 if rank < 2 else None)
        node = gs.Node("Mul", "n", {}, [two, x], [gs.Variable("y")])
        assert scaled(node) == ((x, 2.0) if rank < 2 else None)
        node = gs.Node("Mul", "n", {}, [open_, two], [gs.Variable("y")])
        assert scaled(node) == ((open_, 2.0) if rank < 1 else None)
        assert scaled(node, x) == ((open_, 2.0) if rank < 2 else None)
