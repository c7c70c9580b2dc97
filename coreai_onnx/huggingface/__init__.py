"""Export of models of transformers as folders that other runtimes run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coreai_onnx.export.compat.torch_warnings import import_torchao

if TYPE_CHECKING:
    from coreai_onnx.huggingface.exporting import export_model
    from coreai_onnx.huggingface.folders import ExportedFolder
    from coreai_onnx.huggingface.heads.tasks import TASKS
    from coreai_onnx.huggingface.opened import open_folder, pipeline

__all__ = ["TASKS", "ExportedFolder", "export_model", "open_folder", "pipeline"]

_HOMES = {
    "TASKS": "heads.tasks",
    "ExportedFolder": "folders",
    "export_model": "exporting",
    "open_folder": "opened",
    "pipeline": "opened",
}

import_torchao()  # the modules here import transformers, which imports it


def __getattr__(name: str) -> Any:
    """Import a name from its module on first access: generation exports nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
