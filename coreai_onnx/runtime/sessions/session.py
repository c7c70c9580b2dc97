"""Sessions: models in onnxruntime, with checked inputs and carried state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from coreai_onnx.errors import CoreaiError, InputError, SessionError, failures_as, reason_of
from coreai_onnx.messages import printable_lines
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.sessions.entrypoints import HasModels, OpenProgram
from coreai_onnx.runtime.sessions.given_outputs import output_arrays, output_targets
from coreai_onnx.runtime.sessions.settings import SessionSettings, checked_timeout
from coreai_onnx.runtime.states.held import Shapes, States
from coreai_onnx.runtime.states.streams import Stream
from coreai_onnx.runtime.tensors.outputs import Array, Outputs
from coreai_onnx.runtime.tensors.values import described, from_ort, to_numpy, to_ort

if TYPE_CHECKING:  # a session may open without them: see prepared.py
    import onnx_ir as ir

    from coreai_onnx.runtime.profile.node_times import Profile
    from coreai_onnx.runtime.sessions.sources import Source

_BYTES = attrgetter("nbytes")
_MOST_BOUND_BYTES = 1 << 16
"""Larger inputs and outputs are released after a call: binding 24 states anew takes 0.1 ms."""


class Session:
    """A model that is ready to run; create one with `coreai_onnx.session`.

    ```python
    s = coreai_onnx.session("model.onnx")
    (logits,) = s.run(ids, mask)  # by position, in the order of s.inputs
    s.run(input_ids=ids, attention_mask=mask)  # or by name
    ```

    Inputs are torch tensors, numpy arrays or Python numbers; dtypes are never converted silently.
    Complex inputs, outputs and states are complex tensors and arrays, though the file stores pairs.
    A state keeps its value between calls, starting from the value stored in the model. A session of
    a model with states is one stream of calls, for one thread at a time; `stream` and `fork` return
    further streams on the same loaded model.

    Attributes:
        ort: The plain ``onnxruntime.InferenceSession``.
        kernels: Whether the native kernels are registered.
        timeout: Maximum time of one run in seconds; None means no limit.
    """

    def __init__(
        self,
        source: Source | HasModels,
        *,
        entrypoint: str | None = None,
        timeout: float | None = None,
        **settings: Any,
    ) -> None:
        """Open the model; see `coreai_onnx.session`, and `SessionSettings` for other settings."""
        self.timeout = checked_timeout(timeout)
        with failures_as(SessionError, "the model cannot be opened"):
            program = OpenProgram(source, SessionSettings(timeout=timeout, **settings))
        self._begin(program, program.main if entrypoint is None else entrypoint, States())

    def _begin(
        self,
        program: OpenProgram,
        name: str,
        calls: States,
        values: Mapping[str, ort.OrtValue] = MappingProxyType({}),
    ) -> None:
        with failures_as(SessionError, "the model cannot be opened"):
            model = program[name]
        self.ort, self.kernels = model.ort, model.kernels
        self._program, self._name, self._calls, self._values = program, name, calls, values
        self._model, self._signature = model, model.signature
        self._stream = Stream(name, model.ort, model.signature, model.undo, calls)

    @property
    def entrypoints(self) -> tuple[str, ...]:
        """The entrypoints of the program, in the order in which they were staged."""
        return self._program.names

    def entrypoint(self, name: str) -> Session:
        """Return the session of another entrypoint in the same stream of calls.

        Both have the states of the same names: one reads a prompt into a cache, and the other
        continues from it. An input with the name of a state of another entrypoint is optional; it
        takes the value of that state.

        Raises:
            SessionError: If there is no such entrypoint, it cannot be opened, or a state of the
                same name has another type; or the session is closed.
        """
        self._check_open()
        return self if name == self._name else self._on(self._calls, name)

    @property
    def model(self) -> ir.Model:
        """The model, as it was before onnxruntime optimized it.

        Raises:
            LoadError: If its file has disappeared or changed.
        """
        return self._program.model_of(self._name)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs of `run`, in order, without states."""
        return self._signature.inputs

    @property
    def optional_inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs with a default value in the file; `run` accepts them by name."""
        return tuple(self._signature.optional_inputs.values())

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

    def output_arrays(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Return uninitialized arrays for `run_into`, by name of the output.

        Outputs whose shapes do not follow from the shapes of the inputs, by name, are left out.
        """
        return output_arrays(self._signature, inputs)

    def arrays(self, *args: object, **named: object) -> dict[str, Array]:
        """Return the arguments of `run` as arrays by the names of inputs."""
        arguments = self._signature.bind(args, named)
        return {
            name: to_numpy(value, self._signature.info(name)) for name, value in arguments.items()
        }

    def run(self, *args: object, **named: object) -> Outputs:
        """Run the model once, and keep the new states for the next call.

        Args:
            *args: The arguments of the module that was exported, nested as there, or the inputs in
                order. Numbers, texts and flags must have the values of the export, or are omitted.
            **named: Arguments or inputs by name, and states to use instead of the carried ones.

        Returns:
            The outputs; their ``.states`` holds the new states.

        Raises:
            InputError: If a name, dtype, rank or shape is wrong; the model was not run and no state
                has changed.
            SessionError: If onnxruntime fails, or does not finish within the session's timeout; no
                state has changed. Also if another thread uses the session, or it is closed.
        """
        with self._used("run"):
            return self._run({}, args, named)

    def run_into(self, into: Mapping[str, Array], /, *args: object, **named: object) -> Outputs:
        """Run the model once as `run` does, and write outputs to the caller's memory.

        Inputs are read where they are, so that a call with the same arrays allocates neither.

        Args:
            into: Arrays of the dtype and shape of the outputs, by name; onnxruntime allocates those
                that are missing. They are writable and C-contiguous, and share no memory with the
                inputs.
            *args: As for `run`.
            **named: As for `run`.

        Raises:
            InputError: As `run`, and if an array is not as described; the model was not run.
            SessionError: As `run`, and if an output has another shape than its array, which then
                has no meaningful content.
        """
        with self._used("run"):
            return self._run(into, args, named)

    def _run(
        self, into: Mapping[str, Array], args: tuple[object, ...], named: Mapping[str, object]
    ) -> Outputs:
        info, arrays = self._signature.info, self.arrays(*args, **named)
        start = self._stream.start(arrays)
        self._signature.require(arrays, start.moved, start.kept.values)
        types = {name: described(array, info(name)) for name, array in arrays.items()}
        sizes = self._signature.check(types | start.types, start.types)
        self._signature.check_contract(arrays)
        values = {name: to_ort(array, info(name)) for name, array in arrays.items()}
        feeds = {**self._values, **values, **start.moved}
        targets = self._stream.targets(start, arrays, sizes)
        bound = targets.values | output_targets(self.outputs, into, arrays)
        with self._stream.undone_if_it_fails(start, targets, feeds, sizes):
            results = start.kept.binding.run(feeds, bound, self.timeout)
            outputs = {
                x.name: into[x.name] if x.name in into else from_ort(results[x.name], x)
                for x in self.outputs
            }
        if sum(map(_BYTES, (*arrays.values(), *outputs.values()))) > _MOST_BOUND_BYTES:
            start.kept.binding.release()
        # Last: a failed call changes no state.
        return Outputs(outputs, self._stream.advance(start, results, targets))

    def profile(self, *, skip: int = 0) -> Profile:
        """Return the time of each node in the runs so far, and end the recording.

        Args:
            skip: Number of first runs that are left out.

        Raises:
            SessionError: If the session was opened without ``profile=True``, there is no run, or
                the profile was returned before.
        """
        return self._model.finish_profile(skip)

    # ------------------------------------------------------------------ state
    @property
    def state(self) -> dict[str, Array]:
        """Copies of the present states by name; assign a mapping to replace some or all of them.

        A state that has no value yet, because the file has none to start from, is left out.

        Raises:
            InputError: When assigned, if a name, dtype, rank or shape is wrong; no state has
                changed.
            SessionError: If another thread uses the session, or it is closed.
        """
        with self._used("read"):
            values = {name: self._value_of(name) for name in self.states}
        return {name: value for name, value in values.items() if value is not None}

    @state.setter
    def state(self, values: Mapping[str, object]) -> None:
        with self._used("set"):
            states = self._signature.states_of(values)
            arrays = {name: to_numpy(value, states[name]) for name, value in values.items()}
            types = {name: described(array, states[name]) for name, array in arrays.items()}
            self._signature.check(types, frozenset())
            self._stream.set(arrays)

    def _value_of(self, name: str) -> Array | None:
        value = self._stream.read(name)
        if value is None and name in self._model.initial:
            info = self._signature.info(name)
            return from_ort(to_ort(self._model.initial[name].numpy().copy()), info)
        return value

    def reset(self) -> None:
        """Reset every state to its initial value."""
        with self._used("reset"):
            self._calls.reset()

    def fork(self) -> Session:
        """Return a session on the same loaded model that continues from copies of the states.

        Raises:
            SessionError: If another thread uses the session, or it is closed.
        """
        with self._used("forked"):
            return self._on(self._calls.fork(), self._name)

    def with_inputs(self, **values: object) -> Session:
        """Return a stream in which optional inputs have other values than those in the file.

        The values are read now, once for all calls: hundreds of factors of an adapter cost a token
        nothing but their products. A call may still give other values. Streams and forks of the
        result keep them.

        Args:
            **values: Optional inputs by name; their arrays must not change afterwards.

        Raises:
            InputError: If there is no such optional input, or a dtype, rank or shape is wrong.
        """
        self._check_open()
        for name in values:
            if name not in self._signature.optional_inputs:
                raise InputError(f"{name!r:.80} is not an optional input of the model")
        info, arrays = self._signature.info, self.arrays(**values)
        types = {name: described(array, info(name)) for name, array in arrays.items()}
        self._signature.check(types, frozenset())
        ort_values = {name: to_ort(array, info(name)) for name, array in arrays.items()}
        return self._on(States(), self._name, {**self._values, **ort_values})

    def with_adapters(self) -> Session:
        """Return a session with the inputs for adapters that ``adapters=False`` left out.

        The file is opened again, with all states at their initial values; a session that left out
        none returns itself.

        Raises:
            SessionError: If the file cannot be opened again, or the session is closed.
        """
        self._check_open()
        if not self._model.hides_adapters:
            return self
        other = Session.__new__(Session)
        other.timeout = self.timeout
        other._begin(self._program.with_adapters(), self._name, States())  # noqa: SLF001
        return other

    def stream(self, *, zeros: Shapes = MappingProxyType({}), undo: bool = True) -> Session:
        """Return a session on the same loaded model with all states at their initial values.

        Args:
            zeros: The shapes of states that start as zeros instead, by name. A first call that is
                given arrays copies them; these are in memory that it may update in place.
            undo: Whether a call that fails leaves states that are updated in place as they were.

        Raises:
            InputError: If the model does not have a state of this name, or a shape does not match
                its dims.
        """
        self._check_open()
        states = self._signature.states_of(zeros)
        self._signature.check({n: (states[n].dtype, x) for n, x in zeros.items()}, frozenset())
        calls = States.of_zeros(self._signature.new_states, zeros, undoes=undo)
        return self._on(calls, self._name)

    def _on(
        self, calls: States, name: str, values: Mapping[str, ort.OrtValue] | None = None
    ) -> Session:
        other = Session.__new__(Session)  # __init__ would open the model again
        other.timeout = self.timeout
        if values is None:
            values = self._values if name == self._name else {}
        other._begin(self._program, name, calls, values)  # noqa: SLF001 - of this class
        return other

    def close(self) -> None:
        """Release the states, also for the sessions of other entrypoints in the same stream.

        The loaded model is released with the last session that uses it.
        """
        if not self._calls.closed:
            with self._used("closed"):
                self._calls.clear()
            self._calls.closed = True

    @contextmanager
    def _used(self, how: str) -> Iterator[None]:
        """While active, refuse other threads; a model without states may run in any number.

        Exceptions of other libraries become errors of this package.
        """
        self._check_open()
        has_order = bool(self._calls.by_name)
        if has_order and not self._calls.lock.acquire(blocking=False):  # waiting would lose it
            raise SessionError(
                f"the session cannot be {how}: another thread uses it, and its states have one "
                "order of calls\n  give each thread a session of its own: session.stream(), or "
                "session.fork() to continue from the present states"
            )
        try:
            yield
        except CoreaiError:
            raise
        except Exception as error:
            raise SessionError(f"the session cannot be {how}\n  {reason_of(error)}") from error
        finally:
            if has_order:
                self._calls.lock.release()

    def _check_open(self) -> None:
        if self._calls.closed:
            raise SessionError("the session is closed; open another one, or keep it open")

    def __repr__(self) -> str:
        """Return a text with the interface and the way composites run."""
        how = "kernels" if self.kernels else "bodies"
        lines = [f"Session ({how})", *(f"  input   {info}" for info in self.inputs)]
        lines += [f"  state   {info}" for info in self.state_inputs]
        return printable_lines("\n".join([*lines, *(f"  output  {info}" for info in self.outputs)]))
