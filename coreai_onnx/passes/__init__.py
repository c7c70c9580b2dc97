"""Passes: graph optimizations of an ``onnx_ir`` model, written with onnx-graphsurgeon."""

from coreai_onnx.passes.engine.report import PassMiss, PassReport
from coreai_onnx.passes.engine.surgeon import close_model, open_model
from coreai_onnx.passes.engine.why import NearMiss, Why
from coreai_onnx.passes.order import CONTRIB, LAYOUT, ORDER, Pass
from coreai_onnx.passes.runner import run_passes
from coreai_onnx.passes.targets import optimize_for, passes_for
from coreai_onnx.targets.opsets import TARGETS, Target

__all__ = [
    "CONTRIB",
    "LAYOUT",
    "ORDER",
    "TARGETS",
    "NearMiss",
    "Pass",
    "PassMiss",
    "PassReport",
    "Target",
    "Why",
    "close_model",
    "open_model",
    "optimize_for",
    "passes_for",
    "run_passes",
]
