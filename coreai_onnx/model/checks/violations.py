"""Violations of the ONNX standard in a model, after each pass too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import onnx
import onnx_ir as ir

from coreai_onnx.errors import ComparisonError, Where
from coreai_onnx.model.inventory import op_name, roots
from coreai_onnx.model.provenance.debug_info import CLASS, SCOPE, SOURCE
from coreai_onnx.model.standard.model_protos import is_large_constant, node_proto
from coreai_onnx.model.standard.model_types import Fault, ModelTypes
from coreai_onnx.model.standard.onnx_rules import schema_faults
from coreai_onnx.model.standard.op_schemas import SCHEMA_DOMAINS, imported_version

TORCH_OP = "coreai.torch_op"
"""Key of a node's ``meta``, which is not saved: the exported op that it was lowered from."""
WHERE = "coreai.where"
"""Key of a node's ``meta``: the ``Where`` of that op."""


@dataclass(frozen=True)
class Violation:
    """A node that violates the ONNX specification.

    Attributes:
        fault: The node and what is wrong with it.
        opset: The version of the node's domain.
    """

    fault: Fault
    opset: int

    @property
    def node(self) -> ir.Node:
        """The node."""
        return self.fault.node

    @property
    def torch_op(self) -> str:
        """The op of the exported program that the node was lowered from; empty if unknown."""
        # A node of a body was not lowered itself: the call that leads to it was.
        nodes = (self.node, *reversed(self.fault.callers))
        return next((str(node.meta[TORCH_OP]) for node in nodes if TORCH_OP in node.meta), "")

    @property
    def where(self) -> Where | None:
        """The place of the node in the user's model, or else of the call that leads to it."""
        for node in (self.node, *reversed(self.fault.callers)):
            if WHERE in node.meta:
                return cast(Where, node.meta[WHERE])
            texts = [node.metadata_props.get(key, "") for key in (SCOPE, CLASS, SOURCE)]
            if any(texts):
                return Where(*texts)
        return None

    @property
    def key(self) -> tuple[str, str, str]:
        """The fault without names: equal for the same fault before and after a pass."""
        return self.node.domain, self.node.op_type, self.fault.what

    def __str__(self) -> str:
        """Return op, node, function, types of the inputs and what is wrong, on one line."""
        node, function = self.node, self.fault.function
        inside = f" in the function {op_name(function.domain, function.name)}" if function else ""
        inputs = f"({', '.join(map(_type_text, self.fault.inputs))})" if self.fault.inputs else ""
        name = f"{op_name(node.domain, node.op_type)}{inputs}"
        return f"{name}, node {node.name!r}{inside}, at opset {self.opset}: {self.fault.what}"


def violations(model: ir.Model) -> list[Violation]:
    """Return the violations of the ONNX specification in a model, in node order.

    Types are checked only if every node conforms to its schema. The time is linear in the number of
    nodes, and weights are not read.

    Args:
        model: The model, its nodes in topological order.
    """
    faulty = [
        Violation(fault, _opset(fault.node, root))
        for root in roots(model)
        for fault in _schema_faults(root, model)
    ]
    if faulty:
        return faulty
    # The whole check takes 22 of the 228 ms of `optimize` for a Llama of 12 layers: python -m
    # tools.bench.model_check, in docs/internals/performance_log.md.
    types = ModelTypes(lambda node: model.functions.get(node.op_identifier()), model.ir_version)
    types.of_graph(model.graph)
    return [Violation(f, _opset(f.node, f.function or model.graph)) for f in types.faults]


def new_violations(before: ir.Model, after: ir.Model) -> list[Violation]:
    """Return the violations in a model that were absent before it was changed.

    A model whose types already contradicted each other is checked against the schemas only: one
    contradiction leads to others.
    """
    present = violations(after)
    if not present:
        return []
    earlier = violations(before)
    keys = {one.key for one in earlier}
    # Faults of types come with the types of the inputs, those of schemas without.
    if earlier and all(one.fault.inputs for one in (*earlier, *present)):
        return []
    return [one for one in present if one.key not in keys]


def _schema_faults(root: ir.Graph | ir.Function, model: ir.Model) -> Iterator[Fault]:
    nodes = [
        node
        for node in root.all_nodes()
        if node.domain in SCHEMA_DOMAINS
        and node.op_identifier() not in model.functions
        # Its data would be copied into a message, although only its type is of interest.
        and not is_large_constant(node)
    ]
    protos = [node_proto(node, str(number)) for number, node in enumerate(nodes)]
    function = root if isinstance(root, ir.Function) else None
    for fault in schema_faults(protos, root.opset_imports, model.ir_version):
        yield Fault(nodes[fault.number], fault.what, function=function)


def _opset(node: ir.Node, root: ir.Graph | ir.Function) -> int:
    return imported_version(node.domain, root.opset_imports) or 1


def _type_text(kind: onnx.TypeProto | None) -> str:
    if kind is None or not kind.HasField("tensor_type"):
        return "?" if kind is None else str(kind.WhichOneof("value")).removesuffix("_type")
    tensor = kind.tensor_type
    dtype = str(onnx.TensorProto.DataType.Name(tensor.elem_type)).lower()
    if not tensor.HasField("shape"):
        return dtype
    dims = (
        str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?"
        for d in tensor.shape.dim
    )
    return f"{dtype}[{', '.join(dims)}]"


@runtime_checkable
class Verifier(Protocol):
    """Verifies the results of passes."""

    def check(self, model: ir.Model) -> Callable[[ir.Model], str]:
        """Return a function that describes what a pass broke in a model, or returns "".

        Args:
            model: The model before the passes; what is wrong in it is not attributed to them.
        """


def check_of(
    verify: object, model: ir.Model, make: Callable[[Any], Verifier] | None
) -> Callable[[ir.Model], str] | None:
    """Return the check that runs on a model after each pass, or None if there is nothing to check.

    Args:
        verify: A verifier; inputs; True for the example inputs of the export; None for no check.
        model: The model before the passes.
        make: Makes the verifier of the model's own record from inputs; None if there is no record.

    Raises:
        ComparisonError: If inputs are given, but there is no record.
    """
    if verify is None or verify is False:
        return None
    if isinstance(verify, Verifier):
        return verify.check(model)
    if make is None:
        raise ComparisonError(
            "there is no record of the conversion to verify the passes with\n"
            "  give verify=coreai_onnx.debugging.PassVerifier(ExportRecord.load(path))"
        )
    return make(None if verify is True else verify).check(model)
