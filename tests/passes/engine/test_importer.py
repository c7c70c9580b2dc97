"""What a pass sees of a model. That nothing is lost is shown in test_surgeon."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from coreai_onnx.errors import PassError
from coreai_onnx.passes import open_model
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.importer import type_of_value
from tests.passes.rewriting import parse

TEXT = """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
main (bfloat16[batch, 2] x, bfloat16[2] s = {1, 2}) => (bfloat16[batch, 2] y) <float[2] w = {1, 2}> {
  k = Constant <value_ints = [0, 1]> ()
  t = Transpose <perm = [0, 1]> (x)
  y = ai.coreai.f <eps = 0.5> (t, w, , s)
}
<domain: "ai.coreai", opset_import: ["": 23]>
f <eps: float = 0.1, mode> (a, b, c, d) => (y) {
  e = Constant <value_float: float = @eps> ()
  h = Constant <value_float = 0.5> ()
  y = Add (a, h)
}
"""


def test_what_is_a_constant_and_what_is_not() -> None:
    graph = open_model(parse(TEXT))
    assert [t.name for t in graph.inputs] == ["x", "s"]
    assert [(c.name, c.values.tolist()) for c in context_of(graph).constants] == [
        ("w", [1, 2]),
        ("k", [0, 1]),
    ]
    assert [n.op for n in graph.nodes] == ["Transpose", "f"]
    (function,) = graph.functions
    assert [n.op for n in function.nodes] == ["Constant", "Add"]
    assert function.nodes[0].attrs["value_float"] == gs.Node.AttributeRef("eps", float)
    assert [c.name for c in context_of(function).constants] == ["h"]
    assert function.attrs == {"eps": pytest.approx(0.1), "mode": None}


def test_types_attributes_and_absent_inputs() -> None:
    graph = open_model(parse(TEXT))
    assert graph.inputs[0].dtype == ml_dtypes.bfloat16
    assert graph.inputs[0].shape == ["batch", 2]
    assert graph.nodes[0].attrs == {"perm": [0, 1]}
    assert graph.nodes[1].inputs[2].is_empty()
    assert graph.opset == 23


def test_an_initializer_without_data_is_an_error() -> None:
    model = parse(TEXT)
    model.graph.initializers["w"].const_value = None
    with pytest.raises(PassError, match="initializer 'w' has no data"):
        open_model(model)


def test_types_of_values() -> None:
    value = ir.Value(name="v", shape=ir.Shape([1, "n", None]))
    assert type_of_value(value) == (None, [1, "n", None], "tensor_type")
    strings = ir.Value(name="s", type=ir.SequenceType(ir.TensorType(ir.DataType.FLOAT)))
    assert type_of_value(strings) == (np.float32, None, "sequence_type")
