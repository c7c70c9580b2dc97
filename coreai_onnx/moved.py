"""Modules under the names that they had in version 0.1: an import warns, and returns the module."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
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


class MovedModules(MetaPathFinder, Loader):
    """Finds modules by the names of `MOVED`, and their submodules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a name that has moved."""
        del path, target
        return None if _present_name(fullname) is None else ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the present name in place of the empty one."""
        name = module.__name__
        present = _present_name(name)
        assert present is not None
        warnings.warn(f"{name} is deprecated: import {present}", DeprecationWarning, stacklevel=2)
        # importlib takes the module from here after this call.
        sys.modules[name] = import_module(present)


def _present_name(name: str) -> str | None:
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return None


def install() -> None:
    """Make Python's import find the moved modules."""
    # First: the path finder would find a submodule in the folder of the module, and load it twice.
    sys.meta_path.insert(0, MovedModules())
