"""The user's source lines of values in the graph that onnxruntime runs."""

from __future__ import annotations

import onnx_ir as ir

from coreai_onnx.errors import Where
from coreai_onnx.model.provenance.places import where_of
from coreai_onnx.model.provenance.source_lines import read_code
from coreai_onnx.runtime.memory.recorded_session import Recording

_UNKNOWN = Where("", "", "", "")


class Origins:
    """The places in the user's code that the values of a model come from."""

    def __init__(self, model: ir.Model) -> None:
        """Read the places from the model, as it was before onnxruntime optimized it."""
        code = read_code(model.metadata_props)
        self._places = {
            value.name: where_of(node, code) for node in model.graph for value in node.outputs
        }

    def of(self, name: str, recording: Recording) -> Where:
        """Return the place of a value, or of the first known value that is computed from it.

        onnxruntime gives new names to values in the bodies of functions and to those in another
        layout; the results of functions, and the nodes in another layout, keep theirs.
        """
        derived = {name}
        for node in recording.nodes:
            if derived & {*node.inputs}:
                derived |= {*node.outputs}
            for value in node.outputs:
                known = self._places.get(value) or self._places.get(_fused_from(node.name))
                if value in derived and known is not None:
                    return known
        return _UNKNOWN


def _fused_from(node: str) -> str:
    """Return the value that a node of a convolution in onnxruntime's own layout is named after."""
    return node.removesuffix("_nchwc")
