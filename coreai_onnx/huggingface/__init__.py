"""Export of models of transformers as folders that other runtimes run."""

from coreai_onnx.export.compat.torch_warnings import import_torchao

import_torchao()  # the imports below import transformers, which imports it

from coreai_onnx.huggingface.exporting import export_model  # noqa: E402
from coreai_onnx.huggingface.folders import ExportedFolder  # noqa: E402
from coreai_onnx.huggingface.heads.tasks import TASKS  # noqa: E402
from coreai_onnx.huggingface.opened import open_folder, pipeline  # noqa: E402

__all__ = ["TASKS", "ExportedFolder", "export_model", "open_folder", "pipeline"]
