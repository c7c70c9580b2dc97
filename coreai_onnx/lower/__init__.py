"""Lowers an exported program to an ONNX graph, node by node."""

from coreai_onnx.lower import aten, control_flow
from coreai_onnx.lower.walk.context import Context
from coreai_onnx.lower.walk.interface import IONames
from coreai_onnx.lower.walk.program import LoweredProgram, ProgramLowering

__all__ = ["Context", "IONames", "LoweredProgram", "ProgramLowering", "aten", "control_flow"]
