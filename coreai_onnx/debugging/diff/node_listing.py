"""The nodes of a model as text, in order, with the lines of Python that they come from."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from coreai_onnx.debugging.diff.fingerprints import attribute_texts
from coreai_onnx.errors import Where
from coreai_onnx.messages import printable
from coreai_onnx.model.interface import value_type_text
from coreai_onnx.model.inventory import op_name
from coreai_onnx.model.provenance.places import where_of
from coreai_onnx.model.provenance.source_lines import read_code
from coreai_onnx.model.standard.model_protos import subgraphs


def node_listing(model: ir.Model) -> str:
    """Return a line for each node of the main graph, of its subgraphs, and of the functions.

    Nodes of one module and line have a heading: ``# Module``, ``# File …, line …, code: …``.
    """
    code = read_code(model.metadata_props)
    parts = ["\n".join(_lines(model.graph, code, ""))]
    for function in model.functions.values():
        given = ", ".join(value.name or "?" for value in function.inputs)
        head = f"function {op_name(function.domain, function.name)}({given})"
        parts.append("\n".join([printable(head), *_lines(function.graph, code, "  ")]))
    return "\n\n".join(part for part in parts if part)


def _lines(graph: ir.Graph, code: dict[str, str], indent: str) -> Iterator[str]:
    before: Where | None = None
    for node in graph:
        where = where_of(node, code)
        if where != before:
            if before is not None:
                yield ""
            yield from (f"{indent}# {printable(text)}" for text in _heading(where))
        before = where
        yield f"{indent}{printable(_node(node))}"
        for inner in subgraphs(node):
            yield from _lines(inner, code, f"{indent}    ")


def _heading(where: Where) -> Iterator[str]:
    if where.module or where.module_class:
        kind = f" ({where.module_class})" if where.module_class else ""
        yield f"Module {where.module or '(root)'}{kind}"
    if where.source:
        file, _, line = where.source.rpartition(":")
        yield f"File {file}, line {line}" + (f", code: {where.code}" if where.code else "")


def _node(node: ir.Node) -> str:
    """Return ``y: float32[2, 4] = Gemm(x, w, b, alpha=0.5)``."""
    typed = ((value.name, value_type_text(value)) for value in node.outputs if value.name)
    results = ", ".join(f"{name}: {text}" if text else str(name) for name, text in typed)
    inputs = ["" if value is None else value.name or "?" for value in node.inputs]
    attributes = [f"{name}={text}" for name, text in sorted(attribute_texts(node).items())]
    call = f"{op_name(node.domain, node.op_type)}({', '.join([*inputs, *attributes])})"
    return f"{results} = {call}"
