"""Models of MLflow that run in our sessions: a flavor with `save_model` and `log_model`.

folder/MLmodel                   flavors coreai_onnx and python_function, signature of the file
folder/data/model.onnx           with its data files
folder/data/settings.json        kernels, threads, providers
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from coreai_onnx.errors import SaveError
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.deployment.packaged_file import PackagedFile, sizes_of
from coreai_onnx.runtime.deployment.predictor import Predictor
from coreai_onnx.version import __version__

FLAVOR_NAME = "coreai_onnx"
_SETTINGS = "settings.json"


def log_model(
    model: str | Path,
    name: str,
    *,
    batch_size: int | None = None,
    registered_model_name: str | None = None,
    **settings: Any,
) -> Any:
    """Log a file to the active run of MLflow, as a flavor that runs in our sessions.

    ``mlflow.pyfunc.load_model`` returns a model whose ``predict`` takes a mapping of arrays or a
    data frame, as `Predictor` does, and returns the outputs by name. Kernels, threads and
    providers are those of ``settings``, and the signature is that of the file.

    Args:
        model: A ``.onnx`` file, or a folder of `coreai_onnx.export_model`.
        name: The name of the logged model.
        batch_size: Maximum number of rows of a run; None means all rows of a call.
        registered_model_name: The registered model that gets a version; None registers none.
        **settings: Settings of `coreai_onnx.session`.

    Returns:
        MLflow's ``ModelInfo``.

    Raises:
        LoadError: If there is no such file, or it is not a model.
        SaveError: If MLflow is not installed, or the model has states.
        SessionError: If a setting is out of range.
    """
    packaged = PackagedFile.of(model, batch_size=batch_size, **settings)
    return _mlflow().models.Model.log(
        artifact_path=None,
        name=name,
        flavor=sys.modules[__name__],
        registered_model_name=registered_model_name,
        packaged=packaged,
    )


def save_model(
    packaged: PackagedFile, path: str | Path, *, mlflow_model: Any = None, **_: Any
) -> None:
    """Write a model of MLflow to a new folder; `log_model` calls this through MLflow.

    Raises:
        SaveError: If MLflow is not installed, or a setting cannot be written.
    """
    mlflow = _mlflow()
    settings = {"batch_size": packaged.batch_size, **packaged.stored_settings}
    chosen = mlflow.models.Model() if mlflow_model is None else mlflow_model
    chosen.add_flavor(FLAVOR_NAME, version=__version__, data="data", **settings)
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        data.mkdir()
        # Links, because MLflow copies the files: they may be larger than the free space.
        packaged.copy(data, _link)
        (data / _SETTINGS).write_text(json.dumps(settings), "utf-8")
        mlflow.pyfunc.save_model(
            str(path),
            loader_module=__name__,
            data_path=str(data),
            mlflow_model=chosen,
            signature=_signature(mlflow, packaged),
            pip_requirements=[
                f"coreai-onnx-bridge=={__version__}",
                f"onnxruntime=={ort.__version__}",
                f"mlflow=={mlflow.__version__}",
            ],
        )


def _load_pyfunc(path: str) -> _RowModel:
    """Return what ``mlflow.pyfunc.load_model`` wraps."""
    settings = json.loads((Path(path) / _SETTINGS).read_text("utf-8"))
    providers = [(name, options) for name, options in settings.pop("providers", ())]
    return _RowModel(Predictor(path, keep=[], providers=providers, **settings))


class _RowModel:
    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        predictor.open()  # a model that cannot run is refused when it is loaded

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        del params
        return self.predictor(model_input)


def _link(file: Path, target: Path) -> None:
    try:
        target.symlink_to(file)
    except OSError:  # Windows allows links to administrators and developers only
        shutil.copyfile(file, target)


def _signature(mlflow: Any, packaged: PackagedFile) -> Any:
    types = mlflow.types
    schemas = [
        types.Schema([types.TensorSpec(_dtype(x), tuple(sizes_of(x)), x.name) for x in infos])
        for infos in (packaged.interface.inputs, packaged.interface.outputs)
    ]
    return mlflow.models.ModelSignature(*schemas)


def _dtype(info: TensorInfo) -> np.dtype:
    if info.dtype == "string":
        return np.dtype(object)
    dtype = np.dtype(info.numpy_dtype)
    if dtype.kind not in "biufc":
        raise SaveError(f"MLflow has no type for {info}")
    return dtype


def _mlflow() -> Any:
    try:
        import mlflow
        import mlflow.models
        import mlflow.pyfunc
        import mlflow.types
    except ImportError as error:
        raise SaveError(
            "mlflow is not installed: pip install coreai-onnx-bridge[mlflow]"
        ) from error
    return mlflow
