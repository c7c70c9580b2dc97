"""Export of models of transformers as folders that other runtimes run."""

from coreai_onnx.huggingface.exporting import ExportedFolder, export_model
from coreai_onnx.huggingface.heads.tasks import TASKS
from coreai_onnx.huggingface.opened import open_folder, pipeline

__all__ = ["TASKS", "ExportedFolder", "export_model", "open_folder", "pipeline"]
