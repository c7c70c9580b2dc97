"""Nodes of a newer opset in an older one: whether they mean the same, and their other forms."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir

from coreai_onnx.model.standard.op_schemas import first_version, schema_of

# These nodes are valid in both opsets but compute different things, which no schema tells.
_MEANING_CHANGED = {
    "GridSample": "names its modes in other words since opset 20",
    "GroupNormalization": "takes a scale per channel since opset 21, before one per group",
    "DFT": "takes its axis as an input since opset 20",
}
# Schemas list the names of attributes but not their values, so new values are listed here.
_NEW_VALUES = {
    ("Pad", "mode"): ("wrap",),
    ("Resize", "coordinate_transformation_mode"): ("half_pixel_symmetric",),
}
_FORMS_DOMAIN = "ai.coreai.older"
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
# Opset 18 reduces no bool. As uint8 (2), False and True are 0 and 1, in the same order; 9 is bool.
_REDUCTION = """
<domain: "ai.coreai.older", opset_import: ["": 18]>
{op} <keepdims: int = 1, noop_with_empty_axes: int = 0> (x, axes) => (y) {{
  bytes = Cast <to = 2> (x)
  found = {op} <keepdims: int = @keepdims,
                noop_with_empty_axes: int = @noop_with_empty_axes> (bytes, axes)
  y = Cast <to = 9> (found)
}}"""
OLDER_FORMS: dict[str, tuple[tuple[ir.DataType, ...], str]] = {
    "ReduceMax": ((ir.DataType.BOOL,), _REDUCTION.format(op="ReduceMax")),
    "ReduceMin": ((ir.DataType.BOOL,), _REDUCTION.format(op="ReduceMin")),
    # A cast from 16 bits to float32 is exact: infinities stay, and no other value becomes one.
    "IsInf": (
        _HALF,
        """
<domain: "ai.coreai.older", opset_import: ["": 18]>
IsInf <detect_negative: int = 1, detect_positive: int = 1> (x) => (y) {
  wide = Cast <to = 1> (x)
  y = IsInf <detect_negative: int = @detect_negative,
             detect_positive: int = @detect_positive> (wide)
}""",
    ),
    # The remainder has the sign of the divisor: Python's %, where fmod is C's.
    "Mod": (
        (ir.DataType.FLOAT, ir.DataType.DOUBLE, *_HALF),
        """
<domain: "ai.coreai.older", opset_import: ["": 18]>
Mod (a, b) => (y) {
  rest = Mod <fmod = 1> (a, b)
  rest_sign = Sign (rest)
  sign = Sign (b)
  signs = Mul (rest_sign, sign)
  nought = Constant <value = float {0.0}> ()
  zero = CastLike (nought, b)
  differ = Less (signs, zero)
  moved = Add (rest, b)
  y = Where (differ, moved, rest)
}""",
    ),
}
"""By op: input dtypes that are new since opset 18, and the op on them with the ops of opset 18."""


def obstacle(node: ir.Node, opset: int, older: int) -> str:
    """Return why a standard node of ``opset`` is not valid in an ``older`` opset; empty if it is.

    Between the two opsets an op may have been introduced, or its meaning, attributes, inputs or
    dtypes may have been extended. The node must not use anything that is new.
    """
    op = node.op_type
    new = schema_of(op, opset)
    if new is None:
        return "is unknown to onnx"
    old = schema_of(op, older)
    if old is None:
        return f"is an op since opset {first_version(op)}"
    if old.since_version == new.since_version:
        return ""
    if op in _MEANING_CHANGED:
        return _MEANING_CHANGED[op]
    if op == "Mod" and node.attributes.get_int("fmod", 0) == 0:
        value = node.inputs[0]
        if value is not None and value.dtype in OLDER_FORMS["Mod"][0]:
            return "takes floats with fmod=0, which is newer"
    return _attributes(node, old) or _inputs(node, old)


def call_older_form(
    model: ir.Model, node: ir.Node, dtype: ir.DataType, opset: int, older: int
) -> None:
    """Turn a node that the older opset does not have into a call of a function that has its ops.

    Args:
        model: The model, which gets the function.
        node: A node of an op in ``OLDER_FORMS``.
        dtype: The dtype of its first input.
        opset: The opset of the model.
        older: The opset to convert to.
    """
    op = node.op_type
    dtypes, text = OLDER_FORMS[op]
    old, new = schema_of(op, older), schema_of(op, opset)
    if old is None or new is None or old.since_version == new.since_version or dtype not in dtypes:
        return
    # With fmod=1, Mod takes floats in every opset; this form would change the sign of the result.
    if op == "Mod" and node.attributes.get_int("fmod", 0) == 1:
        return
    function = ir.serde.deserialize_function(onnx.parser.parse_function(text))
    model.functions[function.identifier()] = function
    node.domain = _FORMS_DOMAIN


def _attributes(node: ir.Node, old: onnx.defs.OpSchema) -> str:
    for name, attribute in node.attributes.items():
        if name not in old.attributes:
            return f"has the attribute {name}, which is newer"
        values = _NEW_VALUES.get((node.op_type, name), ())
        if not attribute.is_ref() and attribute.value in values:
            return f"has the {name} {attribute.value!r}, which is newer"
    return ""


def _inputs(node: ir.Node, old: onnx.defs.OpSchema) -> str:
    if len(node.inputs) > old.max_input:
        return "has an input that is newer"
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in old.type_constraints}
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype is None:
            continue
        # The last formal input may be variadic, as that of Concat.
        formal = old.inputs[min(index, len(old.inputs) - 1)]
        dtypes = allowed.get(formal.type_str, {formal.type_str})
        name = f"tensor({value.dtype.name.lower()})"
        if name not in dtypes:
            return f"takes {value.dtype.name.lower()}, which is newer"
    return ""
