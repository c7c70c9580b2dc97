"""The contents of a model as text."""

from __future__ import annotations

import onnx_ir as ir

from coreai_onnx.messages import printable, render, size_text
from coreai_onnx.model.interface import interface
from coreai_onnx.model.inventory import (
    composite_calls,
    op_histogram,
    op_name,
    weights,
)
from coreai_onnx.model.metadata import TARGET


def summarize(name: str, model: ir.Model, needs: str = "") -> str:
    """Return a model's contents as text: interface, composites, functions, operators, sizes.

    Args:
        name: The name of its entrypoint.
        model: The model.
        needs: The oldest onnxruntime with all its contrib ops; empty without such ops.
    """
    io = interface(model)
    rows = [("input", i.name, i.type_text) for i in io.inputs]
    rows += [("state", s.name, s.type_text) for s in io.states]
    rows += [("output", o.name, o.type_text) for o in io.outputs]
    size = weights(model)[1]
    opset = ", ".join(
        f"{domain or 'ai.onnx'} {version}" for domain, version in model.opset_imports.items()
    )
    optimized_for = model.metadata_props.get(TARGET)
    target = f", optimized for {optimized_for}" if optimized_for else ""
    if needs:
        target += f", needs onnxruntime {needs} or later"
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
