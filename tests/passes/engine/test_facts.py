from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs

from coreai_onnx.passes.engine.facts import (
    attribute_of,
    constant_of,
    dtype_of,
    input_of,
    ints_of,
    is_standard,
    same_known_shape,
    shape_of,
    static_shape_of,
)


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
