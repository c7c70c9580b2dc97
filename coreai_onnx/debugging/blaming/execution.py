"""Runs of cut graphs in onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from coreai_onnx.debugging.reference.regions import COMPUTED, CutGraph, Region
from coreai_onnx.debugging.verdict.difference import Array
from coreai_onnx.errors import SessionError, reason_of
from coreai_onnx.runtime.sessions.session import Session


def run_all(
    graph: CutGraph, known: Mapping[str, Array], regions: Sequence[Region], *, kernels: bool
) -> dict[str, Array | str]:
    """Return the result of each region, or why it cannot be run.

    Args:
        graph: The cut graph.
        known: torch's results by value name, which are fed at the cuts.
        regions: The regions that are run alone if the graph cannot be run.
        kernels: Whether kernels are run, or function bodies.

    Raises:
        SessionError: If the graph cannot be run, and there are no regions.
    """
    try:
        return dict(_run(graph.model, known, kernels=kernels))
    except SessionError:  # one region is broken: find out which
        if not regions:
            raise
        results: dict[str, Array | str] = {}
        for region in regions:
            try:
                results |= _run(graph.alone([region]), known, kernels=kernels)
            except SessionError as error:
                results[region.value] = f"onnxruntime cannot run it: {reason_of(error)}"
        return results


def _run(model: ir.Model, known: Mapping[str, Array], *, kernels: bool) -> dict[str, Array]:
    session = Session(model, kernels=kernels)
    outputs = session.run(**{info.name: known[info.name] for info in session.inputs})
    names = (info.name for info in session.outputs)
    return {name.removesuffix(COMPUTED): outputs[name] for name in names}
