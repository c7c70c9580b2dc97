"""Passes: tidy an ``onnx_ir`` model with onnx-graphsurgeon."""

from coreai_onnx.passes.order import ORDER, Pass
from coreai_onnx.passes.report import PassMiss, PassReport
from coreai_onnx.passes.runner import run_passes
from coreai_onnx.passes.surgeon import close_model, open_model
from coreai_onnx.passes.why import NearMiss, Why

__all__ = [
    "ORDER",
    "NearMiss",
    "Pass",
    "PassMiss",
    "PassReport",
    "Why",
    "close_model",
    "open_model",
    "run_passes",
]
