"""Delegated parts of a model: their functions, what their calls pass, and whether it is stale.

The function of a part is in the domain of its backend. Its last input is what the backend made of
the part; the attributes of its calls describe these bytes for the backend's op.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from coreai_onnx.model.inventory import all_nodes, op_name

PART = "part_"
"""The functions of a backend's parts are ``part_0``, ``part_1`` and so on, from 0 in each model."""
BACKEND = "coreai.backend"
"""Key of a function's metadata: the id of the backend that its call is delegated to."""
COMPILE_SPECS = "coreai.compile_specs"
"""Key of a function's metadata: a JSON object of the backend's settings, values in hexadecimal."""
PROCESSED = "coreai.processed"
"""Key of a function's metadata: the SHA-256 of the bytes that its calls pass."""
INPUTS = "coreai.inputs"
"""Key of a function's metadata: the dtypes of its inputs when it was processed, with commas."""
BACKEND_VERSION = "backend_version"
"""Attribute of a call: the version of the backend that made the bytes."""
WEIGHTS = "weights_sha256"
"""Attribute of a call: the SHA-256 of the weights that the bytes contain, in the order of the
inputs; absent if they contain none."""
WEIGHT_COUNT = "weights"
"""Attribute of a call: how many of the first inputs are weights."""
COMPILE_SPEC = "compile_spec_"
"""Prefix of attributes of a call: a setting of the backend, text or else a list of bytes."""
PROVIDER = "onnxruntime."
"""Prefix of the id of a backend that is an execution provider; the bytes of its parts are a model
with the inputs of the part other than weights."""
_NUMBER_AT_END = re.compile(r"\d+$")


def compiled_input(digest: str, number: int) -> str:
    """Return the name of an input of the compiled model of a part.

    Execution providers find the inputs of what they compiled by name.
    """
    # The digest keeps the parts of one model apart, which are in one graph in the end.
    return f"part_{digest[:12]}_input_{number}"


def compiled_output(digest: str, number: int) -> str:
    """Return the name of an output of the compiled model of a part."""
    return f"part_{digest[:12]}_output_{number}"


def number_of(name: str) -> int:
    """Return the number of an input or output of the compiled model of a part."""
    match = _NUMBER_AT_END.search(name)
    assert match is not None
    return int(match[0])


@dataclass(frozen=True)
class DelegatedPart:
    """A part that a backend processed.

    Attributes:
        function: Its function.
        calls: The nodes that call the function.
    """

    function: ir.Function
    calls: tuple[ir.Node, ...]

    @property
    def name(self) -> str:
        """``domain::part_0``."""
        return op_name(self.function.domain, self.function.name)

    @property
    def stale(self) -> str:
        """Why the bytes do not belong to this part; empty if they do."""
        return next((fault for call in self.calls if (fault := self._fault(call))), "")

    def processed(self) -> bytes | None:
        """Return what the backend made of the part; None if it is not a constant."""
        value = constant(self.calls[0].inputs[-1])
        return None if value is None else value.tobytes()

    @property
    def weights(self) -> int:
        """How many of the first inputs are weights."""
        return self.calls[0].attributes.get_int(WEIGHT_COUNT, 0)

    @property
    def version(self) -> str:
        """The version of the backend that processed the part."""
        return self.calls[0].attributes.get_string(BACKEND_VERSION, "")

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the backend that are text, by key."""
        attributes = self.calls[0].attributes.values()
        return {
            attribute.name.removeprefix(COMPILE_SPEC): attribute.as_string()
            for attribute in attributes
            if attribute.name.startswith(COMPILE_SPEC) and attribute.type == ir.AttributeType.STRING
        }

    def _fault(self, call: ir.Node) -> str:
        blob = constant(call.inputs[-1])
        if blob is None:
            return "the processed bytes are not a constant of the model"
        if digest_of([blob.tobytes()]) != self.function.metadata_props.get(PROCESSED):
            return "the processed bytes are not those that the backend made: their SHA-256 differs"
        digest = call.attributes.get(WEIGHTS)
        weights = [constant(value) for value in call.inputs[: self.weights]]
        contents = [tensor.tobytes() for tensor in weights if tensor is not None]
        if digest and (len(contents) < self.weights or digest_of(contents) != digest.as_string()):
            return "its weights have changed since the backend processed it"
        declared = self.function.metadata_props.get(INPUTS, "").split(",")
        dtypes = [value.dtype.name if value and value.dtype else "" for value in call.inputs]
        # A value of unknown type contradicts nothing.
        changed = [a for a, b in zip(declared, dtypes, strict=False) if b and a != b]
        if declared != [""] and (changed or len(declared) != len(dtypes)):
            return "its inputs have changed since the backend processed it"
        return ""


def delegated_parts(model: ir.Model) -> list[DelegatedPart]:
    """Return the delegated parts of a model that are called, in the order of their functions."""
    functions = [f for f in model.functions.values() if BACKEND in f.metadata_props]
    calls: dict[ir.OperatorIdentifier, list[ir.Node]] = {}
    for node in all_nodes(model) if functions else ():
        calls.setdefault(node.op_identifier(), []).append(node)
    pairs = ((f, tuple(calls.get(f.identifier(), ()))) for f in functions)
    return [DelegatedPart(function, nodes) for function, nodes in pairs if nodes]


def digest_of(contents: Iterable[bytes | memoryview]) -> str:
    """Return the SHA-256 of some contents, one after the other."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def constant(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer or of a ``Constant`` node, else None."""
    # An input with a default may have another value in a run.
    if value is None or value.is_graph_input():
        return None
    if value.const_value is not None:
        return value.const_value
    node = value.producer()
    tensors = node.attributes.values() if node is not None and node.op_type == "Constant" else ()
    return next((a.as_tensor() for a in tensors if a.type == ir.AttributeType.TENSOR), None)
