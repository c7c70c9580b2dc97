"""Models beyond one call: tables, several hosts, packages for servers and registries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import onnx_ir as ir

from coreai_onnx.errors import SaveError
from coreai_onnx.model.files.new_files import check_new, new_folder
from coreai_onnx.runtime.deployment.hosts import Hosts, Stage
from coreai_onnx.runtime.deployment.kserve_server import write_server
from coreai_onnx.runtime.deployment.mlflow_models import log_model, save_model
from coreai_onnx.runtime.deployment.model_packages import DEFAULT, write_model_package
from coreai_onnx.runtime.deployment.packaged_file import PackagedFile
from coreai_onnx.runtime.deployment.predictor import Predictor
from coreai_onnx.runtime.deployment.triton import write_repository
from coreai_onnx.targets.opsets import Target

__all__ = ["Hosts", "Predictor", "Stage", "log_model", "package"]

Reader = Literal["triton", "kserve", "mlflow", "onnxruntime"]
READERS: tuple[Reader, ...] = get_args(Reader)


def package(
    model: str | Path,
    folder: str | Path,
    reader: Reader,
    *,
    name: str | None = None,
    batch_size: int | None = None,
    served_from: str | None = None,
    variants: Sequence[str] | None = None,
    **settings: Any,
) -> Path:
    """Write a file to a new folder as a package that a server, registry or onnxruntime reads.

    ```python
    package("minilm_onnx", "models", "triton", name="minilm", threads=2)
    ```

    Args:
        model: A ``.onnx`` file, or a folder of `coreai_onnx.export_model` with ``model.onnx``. Its
            data files are copied, too.
        folder: The folder, which appears complete or not at all.
        reader: ``"triton"`` (a model repository with the kernel library), ``"kserve"`` (a script
            that serves the Open Inference Protocol), ``"mlflow"`` (a model with a signature) or
            ``"onnxruntime"`` (a model package with variants).
        name: The name of the model; None is the name of the file, or of the folder.
        batch_size: Maximum number of rows of a run. Triton joins requests to runs if it is given,
            or, up to 64, if all inputs and outputs begin with one dim of any size. MLflow splits
            tables; None splits none.
        served_from: Where Triton's server sees the folder, which names the library by its absolute
            path; None for a server on this machine.
        variants: The variants of onnxruntime's package, ``"stock"``, ``"kernels"``, ``"webgpu"``
            and ``"cuda"``; None means the first three.
        **settings: Settings of `coreai_onnx.session`, such as ``threads``, ``kernels`` or
            ``provider``, as far as the reader has them.

    Returns:
        The folder.

    Raises:
        LoadError: If there is no such file, or it is not a model.
        SaveError: If the folder is not empty or cannot be written, the model has states, or the
            reader has no such dtype, setting or variant.
        SessionError: If a setting is out of range, or a library is not there.
        TargetError: If the file cannot be optimized for a variant.
    """
    if reader not in READERS:
        raise SaveError(f"reader must be one of {', '.join(READERS)}, got {reader!r}")
    of_readers = (("served_from", served_from, "triton"), ("variants", variants, "onnxruntime"))
    for option, value, of in of_readers:
        if value is not None and reader != of:
            raise SaveError(f"{option} is for {of}, not for {reader}")
    if batch_size is not None and reader not in ("triton", "mlflow"):
        raise SaveError(f"batch_size is for triton and mlflow, not for {reader}")
    place = Path(folder)
    check_new(place)
    packaged = PackagedFile.of(model, name=name, batch_size=batch_size, **settings)
    with new_folder(place) as new:
        if reader == "triton":
            write_repository(packaged, new, served_from, place)
        elif reader == "kserve":
            write_server(packaged, new)
        elif reader == "mlflow":
            new.rmdir()  # MLflow makes it
            save_model(packaged, new)
        else:
            names = DEFAULT if variants is None else variants
            write_model_package(packaged, new, names, _optimize)
    return place


def _optimize(model: ir.Model, target: Target) -> None:
    # Both are slow to import, and packages for other readers need neither.
    from coreai_onnx.bodies.pass_bodies import write_pass_body
    from coreai_onnx.passes import optimize_for

    optimize_for(model, target, write_body=write_pass_body)
