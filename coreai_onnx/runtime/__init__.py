"""Execution of models in onnxruntime, with or without the kernels."""

from coreai_onnx.runtime.library import kernels_built, ops_library_path
from coreai_onnx.runtime.outputs import Outputs
from coreai_onnx.runtime.required_operators import required_operators
from coreai_onnx.runtime.session import Session, session

__all__ = [
    "Outputs",
    "Session",
    "kernels_built",
    "ops_library_path",
    "required_operators",
    "session",
]
