"""Functions of externalized modules, of delegated parts, and of ONNX models that modules call."""

from coreai_onnx.bodies.modules.calls import ModuleCalls

__all__ = ["ModuleCalls"]
