"""PyTorch to ONNX converter that keeps composite ops as functions, which native kernels can run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coreai_onnx import moved
from coreai_onnx.version import __version__

if TYPE_CHECKING:
    from coreai_onnx.conversion import convert
    from coreai_onnx.converter import TorchConverter
    from coreai_onnx.debugging import blame, compare, profile
    from coreai_onnx.delegation.user_kernels import Kernel, kernel
    from coreai_onnx.export.externalize.modules import ExternalizeSpec
    from coreai_onnx.export.externalize.two_step import (
        _patch_model_for_externalization,
        _subexport_and_restore,
        patch_for_externalization,
        restore_externalization,
        subexport_and_restore,
    )
    from coreai_onnx.export.record import ExportRecord
    from coreai_onnx.huggingface import export_model
    from coreai_onnx.huggingface.generation import generate, perplexity
    from coreai_onnx.lower.walk.decomposition_table import get_decomp_table
    from coreai_onnx.program import OnnxProgram
    from coreai_onnx.python_models import (
        DynamicShapes,
        ExportedKernel,
        ExportedModel,
        export_and_codegen,
        export_python,
        from_python,
        from_text,
        postprocess,
        torch_export_python,
    )
    from coreai_onnx.runtime import ops_library_path, required_operators, session
    from coreai_onnx.runtime.memory import memory_plan

__all__ = [
    "DynamicShapes",
    "ExportRecord",
    "ExportedKernel",
    "ExportedModel",
    "ExternalizeSpec",
    "Kernel",
    "OnnxProgram",
    "TorchConverter",
    "__version__",
    "_patch_model_for_externalization",
    "_subexport_and_restore",
    "blame",
    "compare",
    "convert",
    "export_and_codegen",
    "export_model",
    "export_python",
    "from_python",
    "from_text",
    "generate",
    "get_decomp_table",
    "kernel",
    "memory_plan",
    "ops_library_path",
    "patch_for_externalization",
    "perplexity",
    "postprocess",
    "profile",
    "required_operators",
    "restore_externalization",
    "session",
    "subexport_and_restore",
    "torch_export_python",
]

_HOMES = {
    "DynamicShapes": "coreai_onnx.python_models",
    "ExportedKernel": "coreai_onnx.python_models",
    "ExportedModel": "coreai_onnx.python_models",
    "ExternalizeSpec": "coreai_onnx.export.externalize.modules",
    "Kernel": "coreai_onnx.delegation.user_kernels",
    "OnnxProgram": "coreai_onnx.program",
    "ExportRecord": "coreai_onnx.export.record",
    "TorchConverter": "coreai_onnx.converter",
    "_patch_model_for_externalization": "coreai_onnx.export.externalize.two_step",
    "_subexport_and_restore": "coreai_onnx.export.externalize.two_step",
    "blame": "coreai_onnx.debugging",
    "compare": "coreai_onnx.debugging",
    "convert": "coreai_onnx.conversion",
    "export_model": "coreai_onnx.huggingface",
    "export_and_codegen": "coreai_onnx.python_models",
    "export_python": "coreai_onnx.python_models",
    "from_python": "coreai_onnx.python_models",
    "from_text": "coreai_onnx.python_models",
    "generate": "coreai_onnx.huggingface.generation",
    "get_decomp_table": "coreai_onnx.lower.walk.decomposition_table",
    "memory_plan": "coreai_onnx.runtime.memory",
    "kernel": "coreai_onnx.delegation.user_kernels",
    "ops_library_path": "coreai_onnx.runtime",
    "patch_for_externalization": "coreai_onnx.export.externalize.two_step",
    "perplexity": "coreai_onnx.huggingface.generation",
    "postprocess": "coreai_onnx.python_models",
    "profile": "coreai_onnx.debugging",
    "required_operators": "coreai_onnx.runtime",
    "restore_externalization": "coreai_onnx.export.externalize.two_step",
    "session": "coreai_onnx.runtime",
    "subexport_and_restore": "coreai_onnx.export.externalize.two_step",
    "torch_export_python": "coreai_onnx.python_models",
}
"""Imported on first access: an app that only runs models needs no torch."""

moved.install()


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name == "composite_ops":
        return import_module("coreai_onnx.composites")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *_HOMES])
