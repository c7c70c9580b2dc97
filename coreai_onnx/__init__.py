"""PyTorch to ONNX, with composite ops kept as functions and run by kernels of their own."""

from coreai_onnx.converter import TorchConverter, convert
from coreai_onnx.debugging import compare
from coreai_onnx.export.decompositions import get_decomp_table
from coreai_onnx.export.externalize import ExternalizeSpec
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime import ops_library_path, session

__version__ = "0.1.0"

__all__ = [
    "ExternalizeSpec",
    "OnnxProgram",
    "TorchConverter",
    "__version__",
    "compare",
    "convert",
    "get_decomp_table",
    "ops_library_path",
    "session",
]
