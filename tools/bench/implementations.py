"""Every implementation of a case, its inputs bound."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from coreai_onnx.composites import COMPOSITES
from coreai_onnx.runtime import ops_library_path
from tools.bench.case import Case, Inputs
from tools.bench.composite_model import composite_model, feeds_of
from tools.bench.fused_ops import unchanged
from tools.bench.kernel_report import ONE_THREAD, OURS
from tools.bench.runners import (
    OnnxRuntimeRunner,
    OpenVinoRunner,
    Runner,
    TorchRunner,
    openvino_graph,
)

Layout = Callable[[torch.Tensor], torch.Tensor]
Made = dict[str, tuple[Runner, Layout]]
_PORTABLE_OPSET = 18


def inputs_of(case: Case) -> Inputs:
    """Return the inputs of a case, the same ones in each process."""
    torch.manual_seed(0)
    return case.inputs()


def in_onnxruntime(
    case: Case, inputs: Inputs, threads: int, library: Path | None = None
) -> OnnxRuntimeRunner:
    """Return a composite's call in onnxruntime: on the library's kernel, or on its body."""
    model = composite_model(case.composite, inputs, case.attributes, constants=case.constants)
    feeds = feeds_of(case.composite, inputs, constants=case.constants)
    aliases = {"result_0": next(iter(feeds))} if case.in_place else {}
    return OnnxRuntimeRunner(model, feeds, threads, library=library, aliases=aliases)


def implementations(case: Case, inputs: Inputs, options: argparse.Namespace) -> Made:
    """Return implementations by name, with what brings an output into the composite's layout."""
    threads, library = options.threads, ops_library_path()
    made: Made = {OURS: (in_onnxruntime(case, inputs, threads, library), unchanged)}
    if threads > 1:
        made[ONE_THREAD] = (in_onnxruntime(case, inputs, 1, library), unchanged)
    if not options.ours:
        made |= _others(case, inputs, options)
    return made


def _others(case: Case, inputs: Inputs, options: argparse.Namespace) -> Made:
    threads = options.threads
    made: Made = {}
    for make in case.fused:
        fused = make(inputs, case.attributes)
        runner = OnnxRuntimeRunner(fused.model, fused.feeds, threads, aliases=fused.aliases)
        made[fused.name] = (runner, fused.layout)
    if case.parts == 1:  # the body holds what the parts of the reference save
        made["onnxruntime body"] = (in_onnxruntime(case, inputs, threads), unchanged)
    if case.torch is not None:
        made["torch"] = (TorchRunner(case.torch, inputs), unchanged)
    for name, prepare in case.prepared.items():
        made[name] = (TorchRunner(prepare(inputs), ()), unchanged)
    if options.inductor and case.torch is not None:
        made["inductor"] = (TorchRunner(case.torch, inputs, compiled=True), unchanged)
    if options.openvino:
        try:
            made["OpenVINO"] = (_in_openvino(case, inputs, threads), unchanged)
        except RuntimeError as error:
            print(f"OpenVINO does not run {case.name}: {str(error).splitlines()[-1]}")
    return made


def _in_openvino(case: Case, inputs: Inputs, threads: int) -> Runner:
    """Return OpenVINO's own graph, or the body of the function in OpenVINO."""
    if case.openvino is not None:
        return OpenVinoRunner(*case.openvino(inputs), threads)
    model = composite_model(
        case.composite, inputs, case.attributes, opset=_PORTABLE_OPSET, constants=case.constants
    )
    feeds = feeds_of(case.composite, inputs, constants=case.constants)
    return OpenVinoRunner(openvino_graph(model), list(feeds.values()), threads)


def errors(wanted: torch.Tensor, made: Made) -> dict[str, float]:
    """Return the largest differences from the reference in float64, on the same inputs."""
    return {
        name: float((layout(runner.result()).double() - wanted).abs().max())
        for name, (runner, layout) in made.items()
    }


def reference(case: Case, inputs: Inputs) -> torch.Tensor:
    """Return the first output of the composite in float64; its parts save memory."""
    wide = [x.double() if x is not None and x.is_floating_point() else x for x in inputs]
    attributes = {**case.attributes, **case.exact}
    with torch.inference_mode():
        parts = []
        for i in range(case.parts):
            cut = [_part(x, i, case.parts) for x in wide]
            found = COMPOSITES[case.composite].reference(*cut, **attributes)
            parts.append(found[0] if isinstance(found, tuple) else found)
        return torch.cat(parts, 1) if case.parts > 1 else parts[0]


def _part(x: torch.Tensor | None, index: int, parts: int) -> torch.Tensor | None:
    """Return a part of the heads of ``[batch, heads, ...]``; a mask has none."""
    return x if x is None or parts == 1 or x.ndim < 4 else x.chunk(parts, 1)[index]
