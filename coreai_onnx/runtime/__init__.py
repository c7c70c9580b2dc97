"""Execution of models in onnxruntime, with or without the kernels."""

from coreai_onnx.runtime.libraries.library import kernels_built, ops_library_path
from coreai_onnx.runtime.sessions.create import session
from coreai_onnx.runtime.sessions.required_operators import required_operators
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.outputs import Outputs

__all__ = [
    "Outputs",
    "Session",
    "kernels_built",
    "ops_library_path",
    "required_operators",
    "session",
]
