"""ONNX's own checks of a model that was edited: types and shapes of everything."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx
import onnx.shape_inference
from onnxscript import ir

from .errors import BuildError

_NODE = re.compile(r"node name: ([^)]*)\)")
_WITHOUT_DATA = "external"
"""In messages of ONNX's inference about weights whose data it would have to read."""


def check(model: ir.Model, places: Mapping[ir.Node, str]) -> None:
    """Infer the types and shapes of a model's values.

    Args:
        model: The model; values without a type get the inferred one.
        places: The line that made each node.

    Raises:
        BuildError: If operators do not fit together; names the line.
    """
    proto = ir.to_proto(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(
            proto, check_type=True, strict_mode=True, data_prop=True
        )
    except onnx.shape_inference.InferenceError as error:
        text = str(error)
        if _WITHOUT_DATA in text:
            return
        raise BuildError(_message(text, places)) from error
    infos = {item.name: item for item in inferred.graph.value_info}
    for node in model.graph:
        for value in node.outputs:
            if value.type is None and value.name in infos:
                ir.serde.deserialize_value_info_proto(infos[value.name], value)


def _message(text: str, places: Mapping[ir.Node, str]) -> str:
    """Return ONNX's message with the line of the innermost node that it names."""
    by_name = {node.name: (node, place) for node, place in places.items()}
    named = [by_name[name] for name in _NODE.findall(text) if name in by_name]
    reason = text.splitlines()[-1] if "\n" in text.strip() else text
    reason = reason.rpartition("] ")[2].strip() or text
    if not named:
        return reason
    node, place = named[-1]
    return f"{place}: {node.op_type}: {reason}"
