"""Types through calls: once per body, to any depth."""

from __future__ import annotations

from unittest.mock import patch

import onnx
import onnx_ir as ir
import pytest

from coreai_onnx.model.standard import model_types
from coreai_onnx.model.standard.model_types import VARIANTS, ModelTypes
from coreai_onnx.model.standard.onnx_rules import infer
from tests.support.small_models import parse

HEAD = '<ir_version: 10, opset_import: ["": 23, "d": 1]>\n'
FUNCTION = '<domain: "d", opset_import: ["": 23, "d": 1]> '


def types_of(model: ir.Model) -> ModelTypes:
    return ModelTypes(lambda node: model.functions.get(node.op_identifier()), model.ir_version)


def shown(found: dict[ir.Value, onnx.TypeProto]) -> dict[str, tuple[int, list[int | str]]]:
    return {
        value.name or "": (
            kind.tensor_type.elem_type,
            [dim.dim_value or dim.dim_param for dim in kind.tensor_type.shape.dim],
        )
        for value, kind in found.items()
    }


def chain(depth: int, body: str) -> ir.Model:
    """Functions that call each other ``depth`` deep."""
    functions = [FUNCTION + f"f{i} (x) => (y) {{ {body.format(i + 1)} }}" for i in range(depth)]
    last = FUNCTION + f"f{depth} (x) => (y) {{ y = Neg (x) }}"
    main = "main (float[n] x) => (y) { y = d.f0 (x) }\n"
    return parse(HEAD + main + "\n".join([*functions, last]))


def runs(model: ir.Model) -> tuple[int, dict[str, tuple[int, list[int | str]]]]:
    """How often ONNX's inference runs, and what it finds."""
    with patch.object(model_types, "infer", wraps=infer) as counted:
        found = types_of(model).of_graph(model.graph)
    return counted.call_count, shown(found)


def test_functions_that_call_the_next_twice_take_linear_time() -> None:
    count, found = runs(chain(40, "a = d.f{0} (x)  y = d.f{0} (a)"))
    assert found["y"] == (onnx.TensorProto.FLOAT, ["n"])
    assert count == 1  # only the last body holds a node that is no call


def test_calls_are_nested_to_any_depth() -> None:
    count, found = runs(chain(2000, "a = d.f{0} (x)  y = Abs (a)"))
    assert found["y"] == (onnx.TensorProto.FLOAT, ["n"])
    assert count == 2001


def test_shapes_that_double_at_each_call_end_somewhere() -> None:
    body = "a = Concat <axis = 0> (x, x)  b = d.f{0} (a)  c = d.f{0} (x)  y = Neg (x)"
    model = parse(
        HEAD
        + "main (float[1] x) => (y) { y = d.f0 (x) }\n"
        + "\n".join(
            [FUNCTION + f"f{i} (x) => (y) {{ {body.format(i + 1)} }}" for i in range(30)]
            + [FUNCTION + "f30 (x) => (y) { y = Neg (x) }"]
        )
    )
    count, found = runs(model)
    assert found["y"] == (onnx.TensorProto.FLOAT, [1])
    assert count < 31 * 4 * VARIANTS


def test_a_function_that_calls_itself_is_unknown() -> None:
    model = chain(1, "a = d.f{0} (x)  y = Abs (a)")
    model.functions["d", "f1", ""].append(
        ir.node("f0", [model.functions["d", "f1", ""].inputs[0]], domain="d")
    )
    assert runs(model)[1]["y"] == (onnx.TensorProto.FLOAT, ["n"])


def test_attributes_of_a_call_reach_the_body() -> None:
    model = parse(
        HEAD
        + "main (float[2, 3] x) => (y) { a = d.f <perm = [1, 0], to = 7> (x)  y = d.g (a) }\n"
        + FUNCTION
        + "f <perm, to> (x) => (y) "
        + "{ a = Transpose <perm: ints = @perm> (x)  y = Cast <to: int = @to> (a) }\n"
        + FUNCTION
        + "g <to: int = 1> (x) => (y) { y = Cast <to: int = @to> (x) }"
    )  # fmt: skip
    found = runs(model)[1]
    assert found["a"] == (onnx.TensorProto.INT64, [3, 2])
    assert found["y"] == (onnx.TensorProto.FLOAT, [3, 2])


def test_calls_in_a_loop_have_types() -> None:
    model = parse(
        HEAD
        + """main (int64 n, float[2] x) => (z) {
          z = Loop (n, "", x) <body = b (int64 i, bool c, v) => (d, w) {
            w = d.f (v)  d = Identity (c) }> }\n"""
        + FUNCTION
        + "f (x) => (y) { y = Abs (x) }"
    )
    types = types_of(model)
    found = shown(types.of_graph(model.graph))
    assert found["w"][0] == found["z"][0] == onnx.TensorProto.FLOAT
    assert types.faults == []


@pytest.mark.parametrize("element", [onnx.TensorProto.FLOAT, onnx.TensorProto.INT64])
def test_the_body_of_a_function_for_given_types(element: int) -> None:
    model = chain(1, "a = d.f{0} (x)  y = Abs (a)")
    function = model.functions["d", "f0", ""]
    given = onnx.helper.make_tensor_type_proto(element, [2, None])
    found = types_of(model).of_function(function, [given])
    assert found[function.outputs[0]].tensor_type.elem_type == element
    assert shown(found)["a"][1][0] == 2
