"""The contents of a model as text."""

from __future__ import annotations

import onnx_ir as ir

from coreai_onnx.messages import printable, render, size_text
from coreai_onnx.model.interface import interface
from coreai_onnx.model.inventory import (
    composite_calls,
    contrib_needs,
    op_histogram,
    op_name,
    weights,
)
from coreai_onnx.model.metadata import TARGET


def summarize(name: str, model: ir.Model) -> str:
    """Return a model's contents as text: interface, composites, functions, operators, sizes."""
    io = interface(model)
    rows = [("input", i.name, i.type_text) for i in io.inputs]
    rows += [("state", s.name, s.type_text) for s in io.states]
    rows += [("output", o.name, o.type_text) for o in io.outputs]
    size = weights(model)[1]
    opset = ", ".join(
        f"{domain or 'ai.onnx'} {version}" for domain, version in model.opset_imports.items()
    )
    known = model.metadata_props.get(TARGET)
    target = f", optimized for {known}" if known else ""
    needed = contrib_needs(model)
    if needed:
        target += f", needs onnxruntime {needed} or later"
    functions = [(op_name(*key[:2]), len(body)) for key, body in model.functions.items()]
    tables = [
        (("composite", "calls"), list(composite_calls(model).items())),
        (("operator", "count"), list(op_histogram(model).items())),
        (("function", "nodes"), functions),
    ]
    version = f"IR {model.ir_version}, {opset}"
    return "\n\n".join(
        [
            printable(f"entrypoint {name}: {size_text(size)} of weights, {version}{target}"),
            render(("", "name", "type"), rows, indent="  "),
            *(render(header, table, indent="  ") for header, table in tables if table),
        ]
    )
