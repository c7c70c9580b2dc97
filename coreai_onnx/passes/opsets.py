"""Whether a node of a newer opset has the same meaning in an older one."""

from __future__ import annotations

import onnx
import onnx.defs
import onnx_ir as ir

_MEANING_CHANGED = {
    "GridSample": "names its modes in other words since opset 20",
    "GroupNormalization": "takes a scale per channel since opset 21, before one per group",
    "DFT": "takes its axis as an input since opset 20",
}
_NEW_VALUES = {
    ("Pad", "mode"): ("wrap",),
    ("Resize", "coordinate_transformation_mode"): ("half_pixel_symmetric",),
}
_Schema = onnx.defs.OpSchema


def obstacle(node: ir.Node, opset: int, wanted: int) -> str:
    """Return why a standard node of ``opset`` is not valid in ``wanted``; empty if it is.

    Between the two opsets an op may have been introduced, or its meaning, attributes, inputs or
    dtypes may have been extended. The node must not use anything that is new.
    """
    op = node.op_type
    new = _schema(op, opset)
    if new is None:
        return "is unknown to onnx"
    old = _schema(op, wanted)
    if old is None:
        return f"is an op since opset {_first(op, wanted, opset)}"
    if old.since_version == new.since_version:
        return ""
    if op in _MEANING_CHANGED:
        return _MEANING_CHANGED[op]
    return _attributes(node, old) or _inputs(node, old)


def _schema(op: str, opset: int) -> _Schema | None:
    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


def _first(op: str, without: int, opset: int) -> int:
    """Return the first opset with an op; ``since_version`` is that of its last revision."""
    return next(version for version in range(without + 1, opset + 1) if _schema(op, version))


def _attributes(node: ir.Node, old: _Schema) -> str:
    for name, attribute in node.attributes.items():
        if name not in old.attributes:
            return f"has the attribute {name}, which is newer"
        values = _NEW_VALUES.get((node.op_type, name), ())
        if not attribute.is_ref() and attribute.value in values:
            return f"has the {name} {attribute.value!r}, which is newer"
    return ""


def _inputs(node: ir.Node, old: _Schema) -> str:
    if len(node.inputs) > old.max_input:
        return "has an input that is newer"
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in old.type_constraints}
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype is None:
            continue
        formal = old.inputs[min(index, len(old.inputs) - 1)]
        dtypes = allowed.get(formal.type_str, {formal.type_str})
        name = f"tensor({value.dtype.name.lower()})"
        if name not in dtypes:
            return f"takes {value.dtype.name.lower()}, which is newer"
    return ""
