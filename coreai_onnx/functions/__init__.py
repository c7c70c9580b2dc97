"""From composite calls and externalised modules to ONNX functions."""

from coreai_onnx.functions.library import composite_functions
from coreai_onnx.functions.modules import ModuleCalls

__all__ = ["ModuleCalls", "composite_functions"]
