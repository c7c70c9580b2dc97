"""Replaces the graph and the functions of a model by those of a changed copy."""

from __future__ import annotations

import onnx_ir as ir


def adopt(result: ir.Model, model: ir.Model) -> None:
    """Move the graph and the functions of a copy into a model.

    Work on a copy leaves the model as it was if it fails. The metadata of the model stays.

    Args:
        result: The changed copy.
        model: The model, which is changed in place.
    """
    model.graph = result.graph
    model.functions.clear()
    model.functions.update(result.functions)
