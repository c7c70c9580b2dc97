"""Opening of models in onnxruntime: from files, bytes, or models in memory."""

from __future__ import annotations

import math
import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Protocol, runtime_checkable

import onnx
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.errors import LoadError, SessionError, failures_as
from coreai_onnx.files.loading import check_places, fault
from coreai_onnx.files.saving import save_models, to_proto
from coreai_onnx.model.inventory import op_histogram, standard_op_types, weights
from coreai_onnx.model.metadata import read_states
from coreai_onnx.runtime.custom_ops import (
    CustomOps,
    HasLibrary,
    advice_for_unknown_op,
    check_kernels,
    library_paths,
    register_libraries,
)
from coreai_onnx.runtime.library import kernels_built, ops_library_path
from coreai_onnx.runtime.optimizers import READ_BYTES, disabled_optimizers, read_graph
from coreai_onnx.runtime.signature import Signature
from coreai_onnx.runtime.undo import UndoLog


@runtime_checkable
class HasModel(Protocol):
    """A program: anything that has the onnx_ir model of its main entrypoint."""

    @property
    def model(self) -> ir.Model:
        """The model to run."""


Source = str | PathLike[str] | bytes | onnx.ModelProto | ir.Model | HasModel
"""The source of a session: a file, its bytes, a model in memory, or a converted program."""

_OWN_SOURCE = re.compile(r"/onnxruntime_src/\S+ [^\n]*?\) (?=[A-Z])")
_QUANTIZED = re.compile("Quantize|QLinear|Integer|NBits")
MAX_THREADS = 1024
"""Maximum number of threads: onnxruntime starts all of them before it reads the model."""
TEMPORARY_FILE_BYTES = 1 << 29
"""A model in memory with more than 512 MiB of weights is passed in a temporary file, which
onnxruntime maps, instead of as bytes, of which there would briefly be three copies."""


@dataclass(frozen=True)
class RunGraph:
    """Where to write the graph that onnxruntime runs, in ORT format.

    Attributes:
        path: The file.
        optimized: Whether onnxruntime optimizes the graph first.
    """

    path: Path
    optimized: bool


class OpenModel:
    """A model that is open in onnxruntime; several streams may run it.

    Attributes:
        ort: The ``onnxruntime.InferenceSession``.
        kernels: Whether the native kernels are registered.
        signature: Inputs, outputs and states.
        undo: The undo log of updates in place; None if no state is updated in place.
        initial: The values in the file that the states start from, by the states' names.
    """

    def __init__(
        self,
        source: Source,
        *,
        kernels: bool | None,
        threads: int | None,
        prepack: bool | None = True,
        custom_ops: Sequence[CustomOps] = (),
        writes: RunGraph | None = None,
    ) -> None:
        """Open the model; see `coreai_onnx.session`."""
        libraries = library_paths(custom_ops)
        options = ort.SessionOptions()
        # Failures are raised as errors, and onnxruntime's log prints names of the file unescaped.
        options.log_severity_level = 4
        if writes is not None:
            options.optimized_model_filepath = str(writes.path)
            options.add_session_config_entry("session.save_model_format", "ORT")
            if not writes.optimized:
                options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if threads is not None:
            if not (isinstance(threads, int) and 1 <= threads <= MAX_THREADS):
                raise SessionError(
                    f"threads={threads!r}; give a number from 1 to {MAX_THREADS}, "
                    "or None to let onnxruntime choose"
                )
            options.intra_op_num_threads = threads
        checked = any(isinstance(one, HasLibrary) for one in custom_ops)
        graph = _graph(source, most=math.inf if checked else READ_BYTES)
        prepacks = _is_quantized(graph) if prepack is None else prepack
        key = "coreai.huge_pages" if prepacks else "session.disable_prepacking"
        options.add_session_config_entry(key, "1")  # a mapped file has no huge pages
        self.kernels = _register_kernels(options, _op_types(source), kernels=kernels)
        if graph is not None:
            check_kernels(custom_ops, graph)
        register_libraries(options, libraries)
        self._disabled = disabled_optimizers(graph)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.ort = self._open(source, options)
        self.signature = _signature(self.ort, source)
        self.undo: UndoLog | None = None
        self.initial: Mapping[str, ir.TensorProtocol] = {}
        if graph is not None and self.signature.states:
            self.undo, self.initial = UndoLog(graph), _initial(graph)

    @property
    def in_place(self) -> frozenset[str]:
        """The states that may be updated in place."""
        return frozenset() if self.undo is None else self.undo.states

    def _open(self, source: Source, options: ort.SessionOptions) -> ort.InferenceSession:
        if isinstance(source, str | PathLike):
            path = Path(source)
            with failures_as(SessionError, f"cannot load {path}"):
                if not path.is_file():
                    what = "is a folder" if path.is_dir() else "no such file"
                    raise SessionError(f"{path}: {what}")
                _check_places(path)
            return self._load(str(path), options, str(path))
        if isinstance(source, bytes):
            _check_places(source)
            return self._load(source, options, "the given bytes")
        if isinstance(source, onnx.ModelProto):
            _check_places(source)
            return self._load(source.SerializeToString(), options, "the given model")
        model = source.model if isinstance(source, HasModel) else source
        if not isinstance(model, ir.Model):
            raise SessionError(
                f"cannot open a {type(source).__name__}; give a path, a model or a program"
            )
        if weights(model)[1] <= TEMPORARY_FILE_BYTES:
            return self._load(to_proto(model).SerializeToString(), options, "the program")
        self._folder = tempfile.TemporaryDirectory(
            prefix="coreai_onnx_", ignore_cleanup_errors=True
        )
        path = Path(self._folder.name) / "model.onnx"
        save_models({path: model}, path.with_name("model.onnx.data"), external_data=True)
        return self._load(str(path), options, "the program")

    def _load(
        self, model: str | bytes, options: ort.SessionOptions, what: str
    ) -> ort.InferenceSession:
        try:
            return ort.InferenceSession(
                model,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=self._disabled,
            )
        except Exception as error:  # onnxruntime's exceptions share no base class below Exception
            wrong = fault(Path(model)) if isinstance(model, str) else ""
            if wrong:
                raise SessionError(f"cannot load {wrong}") from error
            advice = _advice(str(error), kernels=self.kernels)
            raise SessionError(
                f"onnxruntime {ort.__version__} cannot load {what}\n  {_plain(error)}{advice}"
            ) from error


def _initial(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Return the initial values of the states, which are read when they are used."""
    found = {}
    for state in read_states(model.metadata_props):
        value = model.graph.initializers.get(state.input)
        if value is not None and value.const_value is not None:
            found[state.input] = value.const_value
    return found


def _check_places(source: Path | bytes | onnx.ModelProto) -> None:
    """Check the location of weights first: some versions of onnxruntime read any file."""
    try:
        check_places(source)
    except LoadError as error:
        raise SessionError(f"cannot load {error}") from error


def _signature(session: ort.InferenceSession, source: Source) -> Signature:
    try:
        return Signature.of(session)
    except ValueError as error:
        wrong = fault(Path(source)) if isinstance(source, str | PathLike) else ""
        raise SessionError(
            wrong or f"the metadata of coreai_onnx cannot be read\n  {error!r}"
        ) from error


def _plain(error: Exception) -> str:
    """Return onnxruntime's message without the location in its own sources."""
    return _OWN_SOURCE.sub("", str(error)).strip()


def _advice(message: str, *, kernels: bool) -> str:
    if advice := advice_for_unknown_op(message):
        return advice
    if "IR version" in message or "opset" in message.lower():
        return (
            "\n  update onnxruntime, or convert the model with minimum_onnxruntime="
            f'"{ort.__version__}"'
        )
    return "\n  kernels=False runs the function bodies instead" if kernels else ""


def _graph(source: Source, *, most: float) -> ir.Model | None:
    """Return the model; None if it is broken, or in a file of more than ``most`` bytes."""
    if isinstance(source, HasModel):
        return source.model
    return source if isinstance(source, ir.Model) else read_graph(source, most=most)


def _is_quantized(model: ir.Model | None) -> bool:
    """Return whether a model may have quantized weights, whose products need prepacking."""
    return model is None or any(_QUANTIZED.search(name) for name in op_histogram(model))


def _op_types(source: Source) -> list[str] | None:
    """Return the composites that a model calls; None if that would require reading weights."""
    if isinstance(source, HasModel):
        return standard_op_types(source.model)
    return standard_op_types(source) if isinstance(source, ir.Model) else None


def _register_kernels(
    options: ort.SessionOptions, op_types: list[str] | None, *, kernels: bool | None
) -> bool:
    """Register the kernel library if it is requested; return whether it is registered.

    Args:
        options: The options to register the library with.
        op_types: The composites of the model. Only their kernels are registered, because
            onnxruntime creates a schema for each one (20 ms for all). None registers all.
        kernels: As for `session`.
    """
    if kernels is False or (kernels is None and not kernels_built()):
        return False
    path = ops_library_path()
    if op_types is not None:
        options.add_session_config_entry("coreai.op_types", ",".join(op_types))
    try:
        options.register_custom_ops_library(str(path))
    except Exception as error:  # onnxruntime's exceptions share no base class below Exception
        message = f"onnxruntime {ort.__version__} cannot register the kernels in {path}\n  {error}"
        if kernels:
            raise SessionError(message) from error
        warnings.warn(
            f"{message}\n  the function bodies are used instead", RuntimeWarning, stacklevel=4
        )
        return False
    return True
