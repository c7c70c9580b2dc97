"""What passes made arrives in the model. That nothing is lost is shown in test_surgeon."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from coreai_onnx.errors import PassError
from coreai_onnx.passes import close_model, open_model
from tests.passes.rewriting import parse, shown

TEXT = """<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
main (float[n] x) => (float[n] y) { a = Elu <alpha = 2.0> (x)  y = ai.coreai.f (a) }
<domain: "ai.coreai", opset_import: ["": 23]>
f (x) => (y) { y = Neg (x) }
"""


def edited(change) -> ir.Model:
    model = parse(TEXT)
    graph = open_model(model)
    change(graph)
    close_model(graph, model)
    return model


def test_new_constants_become_initializers_and_constant_nodes() -> None:
    def change(graph: gs.Graph) -> None:
        graph.nodes[0].inputs[0] = gs.Constant("k", np.ones(2, np.float32))
        graph.functions[0].nodes[0].inputs[0] = gs.Constant("k", np.ones(2, np.float32))

    model = edited(change)
    assert list(model.graph.initializers) == ["k"]
    assert model.graph.initializers["k"].type == ir.TensorType(ir.DataType.FLOAT)
    (function,) = model.functions.values()
    assert [n.op_type for n in function] == ["Constant", "Neg"]
    assert function[0].name == "k"
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_attributes_of_every_kind() -> None:
    new = {
        "i": 3, "f": 0.5, "s": "word", "ints": [1, 2], "floats": [0.5], "strings": ["a", "b"],
        "t": gs.Constant("t", np.ones(1, np.float32)), "array": np.zeros(2), "flag": True,
        "ref": gs.Node.AttributeRef("eps", float),
    }  # fmt: skip
    model = edited(lambda graph: graph.nodes[0].attrs.update(new))
    attributes = model.graph[0].attributes
    assert {k: a.type.name for k, a in attributes.items()} == {
        "alpha": "FLOAT", "i": "INT", "f": "FLOAT", "s": "STRING", "ints": "INTS",
        "floats": "FLOATS", "strings": "STRINGS", "t": "TENSOR", "array": "TENSOR", "flag": "INT",
        "ref": "FLOAT",
    }  # fmt: skip
    assert attributes["alpha"].value == 2.0
    assert attributes["ref"].ref_attr_name == "eps"


def test_a_changed_list_is_noticed_and_an_emptied_one_keeps_its_type() -> None:
    text = "main (float[1, 1] x) => (float[1, 1] y) { y = Transpose <perm = [0, 1]> (x) }"
    for perm in ([1, 0], []):
        model = parse(text)
        graph = open_model(model)
        graph.nodes[0].attrs["perm"][:] = perm
        close_model(graph, model)
        assert model.graph[0].attributes["perm"].type == ir.AttributeType.INTS
        assert list(model.graph[0].attributes["perm"].value) == perm


def test_what_cannot_be_written_is_an_error_and_changes_nothing() -> None:
    model = parse(TEXT)
    graph = open_model(model)
    graph.nodes[0].attrs["bad"] = {1, 2}
    with pytest.raises(PassError, match="attribute 'bad': a set cannot be written"):
        close_model(graph, model)
    assert shown(model) == shown(parse(TEXT))


def test_changed_types_are_written() -> None:
    def change(graph: gs.Graph) -> None:
        tensor = graph.nodes[0].outputs[0]
        tensor.dtype, tensor.shape = np.dtype(ml_dtypes.bfloat16), ["n", 4]

    value = edited(change).graph[0].outputs[0]
    assert value.type == ir.TensorType(ir.DataType.BFLOAT16)
    assert value.shape == ir.Shape(["n", 4])


def test_a_new_domain_is_imported() -> None:
    def change(graph: gs.Graph) -> None:
        graph.nodes[0].op, graph.nodes[0].domain = "thing", "ai.coreai.user"

    assert edited(change).opset_imports == {"": 23, "ai.coreai": 1, "ai.coreai.user": 1}


def test_a_new_domain_in_a_function_is_imported_by_the_model_too() -> None:
    def change(graph: gs.Graph) -> None:
        graph.functions[0].nodes[0].domain = "ai.coreai.user"

    model = edited(change)
    (function,) = model.functions.values()
    assert function.opset_imports == {"": 23, "ai.coreai.user": 1}
    assert model.opset_imports == {"": 23, "ai.coreai": 1, "ai.coreai.user": 1}


def test_a_new_function_must_come_through_the_door() -> None:
    with pytest.raises(PassError, match="was not read by the engine"):
        edited(lambda graph: graph.functions.append(gs.Function("g", "ai.coreai", opset=23)))
