"""PyTorch to ONNX converter that keeps composite ops as functions, which native kernels can run."""

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from coreai_onnx.version import __version__

# pip refuses an older Python, but a search path that leads to another Python's packages does not.
# No error of this package: Python before 3.9 cannot import them.
if sys.version_info < (3, 11):  # noqa: UP036
    raise ImportError(
        f"coreai_onnx {__version__} needs Python 3.11 or later, "
        f"this is Python {sys.version_info[0]}.{sys.version_info[1]}; "
        "install it for a newer Python: python3.11 -m pip install coreai-onnx-bridge"
    )

if TYPE_CHECKING:
    from coreai_onnx.conversion import (
        DynamicShapes,
        ExportedKernel,
        ExportedModel,
        convert,
        export_and_codegen,
        export_python,
        from_python,
        from_text,
        postprocess,
        torch_export_python,
    )
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
    from coreai_onnx.lower.walk.decompose import get_decomp_table
    from coreai_onnx.program import OnnxProgram
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
    "DynamicShapes": "coreai_onnx.conversion",
    "ExportedKernel": "coreai_onnx.conversion",
    "ExportedModel": "coreai_onnx.conversion",
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
    "export_and_codegen": "coreai_onnx.conversion",
    "export_python": "coreai_onnx.conversion",
    "from_python": "coreai_onnx.conversion",
    "from_text": "coreai_onnx.conversion",
    "generate": "coreai_onnx.huggingface.generation",
    "get_decomp_table": "coreai_onnx.lower.walk.decompose",
    "memory_plan": "coreai_onnx.runtime.memory",
    "kernel": "coreai_onnx.delegation.user_kernels",
    "ops_library_path": "coreai_onnx.runtime",
    "patch_for_externalization": "coreai_onnx.export.externalize.two_step",
    "perplexity": "coreai_onnx.huggingface.generation",
    "postprocess": "coreai_onnx.conversion",
    "profile": "coreai_onnx.debugging",
    "required_operators": "coreai_onnx.runtime",
    "restore_externalization": "coreai_onnx.export.externalize.two_step",
    "session": "coreai_onnx.runtime",
    "subexport_and_restore": "coreai_onnx.export.externalize.two_step",
    "torch_export_python": "coreai_onnx.conversion",
}
"""Imported on first access: an app that only runs models needs no torch."""

_MOVED = {
    "coreai_onnx.generation": "coreai_onnx.huggingface.generation",
    "coreai_onnx.kernels": "coreai_onnx.delegation.user_kernels",
    "coreai_onnx.memory": "coreai_onnx.runtime.memory",
    "coreai_onnx.passes.engine.append_body": "coreai_onnx.passes.engine.bodies",
    "coreai_onnx.passes.engine.bypass": "coreai_onnx.passes.engine.edit",
    "coreai_onnx.passes.engine.context": "coreai_onnx.passes.engine.graphs",
    "coreai_onnx.passes.engine.digest": "coreai_onnx.passes.engine.constants",
    "coreai_onnx.passes.engine.head_layout": "coreai_onnx.passes.engine.edit",
    "coreai_onnx.passes.engine.lazy": "coreai_onnx.passes.engine.constants",
    "coreai_onnx.passes.engine.weight": "coreai_onnx.passes.engine.constants",
}
"""Modules under the names that they had in version 0.1."""


class _MovedModules:
    """Finds modules by the names of `_MOVED`, and their submodules.

    The base classes in importlib.abc import what reads archives, which takes 10 ms.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a name that has moved."""
        del path, target
        loader: Any = self
        return None if _present_name(fullname) is None else ModuleSpec(fullname, loader)

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create a module as usual."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the present name in place of the empty one."""
        name = module.__name__
        present = _present_name(name)
        assert present is not None
        warnings.warn(f"{name} is deprecated: import {present}", DeprecationWarning, stacklevel=2)
        # importlib takes the module from here after this call.
        sys.modules[name] = import_module(present)


def _present_name(name: str) -> str | None:
    for old, new in _MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return None


def _refuse_the_other_distribution() -> None:
    """Raise if the folder of this package also holds the distribution ``coreai-onnx``.

    That project installs a package of the same name. Its uninstallation would remove files of ours.
    """
    folder = os.path.dirname(__path__[0])  # noqa: PTH120 - as below
    # This takes 0.1 ms; to import pathlib or importlib.metadata takes tens of it.
    try:
        names = os.listdir(folder)  # noqa: PTH208 - as above
    except OSError:  # a zip archive
        return
    if any(n.startswith("coreai_onnx-") and n.endswith(".dist-info") for n in names):
        from coreai_onnx.errors import DistributionConflictError

        raise DistributionConflictError(
            "coreai-onnx and coreai-onnx-bridge overwrite each other's files, since both install "
            "the package coreai_onnx: run `pip uninstall -y coreai-onnx coreai-onnx-bridge`, then "
            "install coreai-onnx-bridge again"
        )


_refuse_the_other_distribution()

# First: the path finder would find a submodule in the folder of the module, and load it twice.
sys.meta_path.insert(0, _MovedModules())


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it."""
    if name == "composite_ops":
        return import_module("coreai_onnx.composites")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except (AttributeError, ImportError) as error:
        if not sys.modules.get("torch"):
            raise
        from coreai_onnx.export.versions import refusal_after

        refusal = refusal_after(error)
        if refusal is None:
            raise
        raise refusal from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted([*globals(), *_HOMES])
