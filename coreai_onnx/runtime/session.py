"""Sessions: models in onnxruntime, with checked inputs and carried state."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Protocol, runtime_checkable

import onnx
import onnx_ir as ir
import onnxruntime as ort

from coreai_onnx.errors import LoadError, SessionError, failures_as
from coreai_onnx.files.loading import check_places, fault
from coreai_onnx.files.saving import save_models, to_proto
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.model.inventory import standard_op_types, weights
from coreai_onnx.printable import printable_lines
from coreai_onnx.runtime.library import kernels_built, ops_library_path
from coreai_onnx.runtime.optimizers import disabled_optimizers, read_graph
from coreai_onnx.runtime.outputs import Array, Outputs
from coreai_onnx.runtime.signature import Signature
from coreai_onnx.runtime.values import described, from_ort, to_numpy, to_ort


@runtime_checkable
class HasModel(Protocol):
    """A program: anything that has the onnx_ir model of its main entrypoint."""

    @property
    def model(self) -> ir.Model:
        """The model to run."""


Source = str | PathLike[str] | bytes | onnx.ModelProto | ir.Model | HasModel
"""The source of a session: a file, its bytes, a model in memory, or a converted program."""

_OWN_SOURCE = re.compile(r"/onnxruntime_src/\S+ [^\n]*?\) (?=[A-Z])")
MAX_THREADS = 1024
"""Maximum number of threads: onnxruntime starts all of them before it reads the model."""
TEMPORARY_FILE_BYTES = 1 << 29
"""A model in memory with more than 512 MiB of weights is passed in a temporary file, which
onnxruntime maps, instead of as bytes, of which there would briefly be three copies."""


def session(
    path_or_program: Source, *, kernels: bool | None = None, threads: int | None = None
) -> Session:
    """Open a model in onnxruntime on the CPU.

    Args:
        path_or_program: A ``.onnx`` file, or a program or model in memory.
        kernels: Whether composites run on the native kernels (True) or on their function bodies
            (False); None uses the kernels if they are built.
        threads: Threads per operator, 1 to 1024; None lets onnxruntime choose.

    Returns:
        The session.

    Raises:
        KernelsNotBuiltError: If ``kernels=True`` and there is no kernel library.
        SessionError: If the model is missing, broken, or rejected by onnxruntime, or ``threads`` is
            out of range.
    """
    return Session(path_or_program, kernels=kernels, threads=threads)


class Session:
    """A model that is ready to run; create one with `session`.

    ```python
    s = coreai_onnx.session("model.onnx")
    (logits,) = s.run(ids, mask)  # by position, in the order of s.inputs
    s.run(input_ids=ids, attention_mask=mask)  # or by name
    ```

    Inputs are torch tensors, numpy arrays or Python numbers; dtypes are never converted silently.
    Complex inputs, outputs and states are complex tensors and arrays, though the file stores pairs.
    A state keeps its value between calls, starting from the value stored in the model.

    Attributes:
        ort: The plain ``onnxruntime.InferenceSession``.
        kernels: Whether the native kernels are registered.
    """

    def __init__(
        self, source: Source, *, kernels: bool | None = None, threads: int | None = None
    ) -> None:
        """Open the model; see `session`."""
        with failures_as(SessionError, "the model cannot be opened"):
            self._prepare(source, kernels=kernels, threads=threads)

    def _prepare(self, source: Source, *, kernels: bool | None, threads: int | None) -> None:
        options = ort.SessionOptions()
        # Failures are raised as errors, and onnxruntime's log prints names of the file unescaped.
        options.log_severity_level = 4
        if threads is not None:
            if not (isinstance(threads, int) and 1 <= threads <= MAX_THREADS):
                raise SessionError(
                    f"threads={threads!r}; give a number from 1 to {MAX_THREADS}, "
                    "or None to let onnxruntime choose"
                )
            options.intra_op_num_threads = threads
        self.kernels = _register_kernels(options, _op_types(source), kernels=kernels)
        self._disabled = disabled_optimizers(_graph(source))
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.ort = self._open(source, options)
        self._signature = _signature(self.ort, source)
        self._carried: dict[str, ort.OrtValue] = {}

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs of `run`, in order, without states."""
        return self._signature.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs of `run`, in order, without states."""
        return self._signature.outputs

    @property
    def mutated_inputs(self) -> Mapping[str, str]:
        """The input that the module changes in place, by the output with what it wrote to it."""
        return self._signature.mutated_inputs

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states. `run` accepts a value for each by name; all are optional."""
        return tuple(state.input for state in self._signature.states)

    @property
    def state_inputs(self) -> tuple[TensorInfo, ...]:
        """Name, dtype and dims of each state."""
        return tuple(self._signature.state_inputs[name] for name in self.states)

    def example_sizes(self, sizes: Mapping[str, int], *, default: int = 2) -> dict[str, int]:
        """Return a size for every symbolic dim of the inputs.

        Args:
            sizes: Sizes that are already fixed, by dim name.
            default: Size of the others, clamped to their bounds; dims that are expressions follow
                from the names in them.
        """
        return self._signature.example_sizes(sizes, default)

    def run(self, *args: object, **named: object) -> Outputs:
        """Run the model once, and keep the new states for the next call.

        Args:
            *args: Inputs by position.
            **named: Inputs by name, and states to use instead of the carried ones.

        Returns:
            The outputs; their ``.states`` holds the new states.

        Raises:
            InputError: If a name, dtype, rank or shape is wrong; the model was not run and no state
                has changed.
            SessionError: If onnxruntime fails; no state has changed.
        """
        with failures_as(SessionError, "the model cannot be run"):
            return self._run(args, named)

    def _run(self, args: tuple[object, ...], named: Mapping[str, object]) -> Outputs:
        given = self._signature.bind(args, named)
        info = self._signature.info
        arrays = {name: to_numpy(value, info(name)) for name, value in given.items()}
        carried = {name: value for name, value in self._carried.items() if name not in arrays}
        self._signature.require((*arrays, *carried))
        values: dict[str, Array | ort.OrtValue] = {**arrays, **carried}
        types = {name: described(value, info(name)) for name, value in values.items()}
        self._signature.check(types, frozenset(carried))
        feeds = {name: to_ort(array, info(name)) for name, array in arrays.items()} | carried
        return self._returned(self._run_ort(feeds))

    def reset(self) -> None:
        """Reset every state to its initial value."""
        self._carried = {}

    def __repr__(self) -> str:
        """Return a text with the interface and the way composites run."""
        how = "kernels" if self.kernels else "bodies"
        lines = [f"Session ({how})", *(f"  input   {info}" for info in self.inputs)]
        lines += [f"  state   {info}" for info in self.state_inputs]
        return printable_lines("\n".join([*lines, *(f"  output  {info}" for info in self.outputs)]))

    def _run_ort(self, feeds: dict[str, ort.OrtValue]) -> dict[str, ort.OrtValue]:
        names = [node.name for node in self.ort.get_outputs()]
        try:
            return dict(zip(names, self.ort.run_with_ort_values(names, feeds), strict=True))
        except Exception as error:  # onnxruntime's exceptions share no base class below Exception
            raise SessionError(f"onnxruntime failed while running\n  {error}") from error

    def _returned(self, results: dict[str, ort.OrtValue]) -> Outputs:
        states = {state.input: results[state.output] for state in self._signature.states}
        self._carried = states

        def read_states() -> dict[str, Array]:
            info = self._signature.info
            return {name: from_ort(value, info(name)) for name, value in states.items()}

        return Outputs(
            {info.name: from_ort(results[info.name], info) for info in self.outputs}, read_states
        )

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
    if "IR version" in message or "opset" in message.lower():
        return (
            "\n  update onnxruntime, or convert the model with minimum_onnxruntime="
            f'"{ort.__version__}"'
        )
    return "\n  kernels=False runs the function bodies instead" if kernels else ""


def _graph(source: Source) -> ir.Model | None:
    """Return the model; None if that would require reading many weights."""
    if isinstance(source, HasModel):
        return source.model
    return source if isinstance(source, ir.Model) else read_graph(source)


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
