"""Builds an ONNX model from Python functions that call operators.

This folder is the same in every package that coreai_onnx writes. It needs onnxscript, onnx and
numpy; running a model needs onnxruntime.
"""

from .arguments import Fields, Fixed
from .attributes import typed
from .errors import BuildError
from .model import Model
from .tensors import Container, tensor
from .tracing import Opset, op

__all__ = [
    "BuildError",
    "Container",
    "Fields",
    "Fixed",
    "Model",
    "Opset",
    "op",
    "tensor",
    "typed",
]
