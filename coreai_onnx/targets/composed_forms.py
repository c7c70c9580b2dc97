"""Operators that are newer than opset 18, as functions of older ones: for execution providers.

ONNX defines most of them by a function of its own. That of Attention computes in many small nodes,
so the calls that composites make are written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir

from coreai_onnx.model.standard.op_schemas import schema_of

FORMS_DOMAIN = "ai.coreai.older"
COMPOSED = frozenset({"Attention", "Gelu", "RMSNormalization", "RotaryEmbedding", "Swish"})
"""The operators that `compose` replaces."""
_HEADS = 1
"""The axis of the heads in ``[batch, heads, length, size]``."""
_BY_GROUP = """
  batch = Shape <start = 0, end = 1> (q)
  heads = Shape <start = 1, end = 2> (q)
  length = Shape <start = 2, end = 3> (q)
  groups = Shape <start = 1, end = 2> (k)
  keys = Shape <start = 2, end = 3> (k)
  size = Shape <start = 3, end = 4> (q)
  out = Shape <start = 3, end = 4> (v)
  group = Div (heads, groups)
  rows = Mul (group, length)
  dims = Concat <axis = 0> (batch, groups, rows, size)
  score_dims = Concat <axis = 0> (batch, heads, length, keys)
  weight_dims = Concat <axis = 0> (batch, groups, rows, keys)
  result_dims = Concat <axis = 0> (batch, heads, length, out)"""
_POSITIONS = """
  nought = Constant <value = int64 {0}> ()
  unit = Constant <value = int64 {1}> ()
  first = Constant <value = int64[1] {0}> ()
  last = Constant <value = int64[1] {1}> ()
  query_sizes = Shape <start = 2, end = 3> (q)
  key_sizes = Shape <start = 2, end = 3> (k)
  query_size = Squeeze (query_sizes, first)
  key_size = Squeeze (key_sizes, first)
  query_range = Range (nought, query_size, unit)
  key_range = Range (nought, key_size, unit)
  query_steps = Cast <to = 6> (query_range)
  key_steps = Cast <to = 6> (key_range)
  column = Unsqueeze (query_steps, last)
  row = Unsqueeze (key_steps, first)
  causal = GreaterOrEqual (column, row)"""


def compose(model: ir.Model, node: ir.Node, types: Mapping[ir.Value, onnx.TypeProto]) -> None:
    """Turn a node into a call of a function that computes the same with operators of opset 18.

    Args:
        model: The model, which gets the function.
        node: A node of an operator in `COMPOSED`. It stays as it is if there is no such function.
        types: The types of values.
    """
    opset = node.graph.opset_imports[""] if node.graph is not None else 0
    text = _attention(node, types) if node.op_type == "Attention" else ""
    if text:
        function = ir.serde.deserialize_function(onnx.parser.parse_function(text))
    elif (proto := _defined(node, opset, types)) is not None:
        function = ir.serde.deserialize_function(proto)
    else:
        return
    function.opset_imports.clear()
    function.opset_imports[""] = 18
    # The body has the values of the attributes, so that each node has one of its own.
    function.domain, function.name = FORMS_DOMAIN, f"{node.op_type}_{len(model.functions)}"
    for name in list(node.attributes):
        del node.attributes[name]
    model.functions[function.identifier()] = function
    node.domain, node.op_type = function.domain, function.name


def _defined(
    node: ir.Node, opset: int, types: Mapping[ir.Value, onnx.TypeProto]
) -> onnx.FunctionProto | None:
    """Return the function by which ONNX defines the operator of a node."""
    schema: Any = schema_of(node.op_type, opset)  # the stubs of onnx lack its functions
    if schema is None:
        return None
    if schema.has_function:
        proto = onnx.FunctionProto.FromString(schema.function_body.SerializeToString())
        return _with_attributes(proto, node)
    # onnx takes a type for each input: an empty one for one that is absent or of unknown type.
    inputs = [
        types.get(v, onnx.TypeProto()) if v is not None else onnx.TypeProto() for v in node.inputs
    ]
    content = schema.get_context_dependent_function_with_opset_version(
        schema.context_dependent_function_opset_versions[-1],
        ir.serde.serialize_node(node).SerializeToString(),
        [one.SerializeToString() for one in inputs],
    )
    function = onnx.FunctionProto.FromString(content)
    del function.attribute[:]
    # Formal inputs and outputs that the node does not have are optional.
    del function.input[len(node.inputs) :]
    del function.output[len(node.outputs) :]
    return function if function.node else None


def _with_attributes(function: onnx.FunctionProto, node: ir.Node) -> onnx.FunctionProto:
    """Replace the references to attributes by the values of a node, or by the defaults."""
    # Swish, the newest of the operators, is of opset 24.
    schema = schema_of(node.op_type, 24)
    assert schema is not None
    values = {name: one.default_value for name, one in schema.attributes.items()}
    values |= {name: ir.serde.serialize_attribute(one) for name, one in node.attributes.items()}
    for inner in function.node:
        for attribute in inner.attribute:
            if attribute.ref_attr_name:
                name = attribute.name
                attribute.CopyFrom(values[attribute.ref_attr_name])
                attribute.name = name
    del function.attribute[:]
    del function.attribute_proto[:]
    return function


def _attention(node: ir.Node, types: Mapping[ir.Value, onnx.TypeProto]) -> str:
    """Return the text of the function for an Attention as composites call it; empty for others."""
    inputs = [value for value in node.inputs if value is not None]
    kinds = [types.get(value) for value in inputs]
    ranks = [len(t.tensor_type.shape.dim) for t in kinds[:3] if t is not None]
    scale = node.attributes.get("scale")
    # Caches, a length of the keys and further results have functions of ONNX only.
    usual = len(node.inputs) == len(inputs) <= 4 and len(node.outputs) == 1 and _zeroed(node)
    if ranks != [4, 4, 4] or scale is None or not usual or "softmax_precision" in node.attributes:
        return ""
    softcap = node.attributes.get_float("softcap", 0.0)
    same = _heads(kinds[0]) is not None and _heads(kinds[0]) == _heads(kinds[1])
    lines = [
        # Nine digits tell all numbers of float32 apart.
        f"  scale_f = Constant <value = float {{{scale.as_float():.9g}}}> ()",
        "  scale = CastLike (scale_f, q)",
        "  scaled = Mul (q, scale)",
        "  transposed = Transpose <perm = [0, 1, 3, 2]> (k)",
    ]
    if same:
        lines.append("  scores0 = MatMul (scaled, transposed)")
    else:
        # Without allowzero, a size of 0, as of an empty cache, would mean that of the input.
        lines += [
            _BY_GROUP,
            "  grouped = Reshape <allowzero = 1> (scaled, dims)",
            "  products = MatMul (grouped, transposed)",
            "  scores0 = Reshape <allowzero = 1> (products, score_dims)",
        ]
    lines += _masked(node, kinds, softcap)
    lines.append("  weights = Softmax <axis = -1> (scores)")
    if same:
        lines.append("  y = MatMul (weights, v)")
    else:
        lines += [
            "  rows_of_weights = Reshape <allowzero = 1> (weights, weight_dims)",
            "  product = MatMul (rows_of_weights, v)",
            "  y = Reshape <allowzero = 1> (product, result_dims)",
        ]
    names = ", ".join(("q", "k", "v", "mask")[: len(inputs)])
    head = f'<domain: "{FORMS_DOMAIN}", opset_import: ["": 18]>\nAttention ({names}) => (y) {{\n'
    return head + "\n".join(lines) + "\n}"


def _masked(node: ir.Node, kinds: list[onnx.TypeProto | None], softcap: float) -> list[str]:
    """Return the lines from the scores to the input of the softmax."""
    lines, name = [], "scores0"
    if softcap > 0:
        lines += [
            f"  softcap_f = Constant <value = float {{{softcap:.9g}}}> ()",
            "  softcap = CastLike (softcap_f, q)",
            "  divided = Div (scores0, softcap)",
            "  bent = Tanh (divided)",
            "  capped = Mul (bent, softcap)",
        ]
        name = "capped"
    lines += [
        "  infinity_f = Constant <value = float {-inf}> ()",
        "  infinity = CastLike (infinity_f, q)",
    ]
    if node.attributes.get_int("is_causal", 0):
        lines += [_POSITIONS, f"  below = Where (causal, {name}, infinity)"]
        name = "below"
    if len(kinds) == 4:
        bool_mask = kinds[3] is not None and kinds[3].tensor_type.elem_type == onnx.TensorProto.BOOL
        last = f"Where (mask, {name}, infinity)" if bool_mask else f"Add ({name}, mask)"
        lines.append(f"  scores = {last}")
    else:
        lines.append(f"  scores = Identity ({name})")
    return lines


def _heads(kind: onnx.TypeProto | None) -> int | None:
    if kind is None:
        return None
    dim = kind.tensor_type.shape.dim[_HEADS]
    return dim.dim_value if dim.HasField("dim_value") else None


def _zeroed(node: ir.Node) -> bool:
    """Return whether rows without keys need no care: there is no mask, or a Where replaces them.

    A softmax of such a row is NaN, where Attention gives zeros.
    """
    return len(node.inputs) < 4 or all(
        reader.op_type in ("Where", "CastLike") for reader in node.outputs[0].consumers()
    )
