"""The calls of one entrypoint in a stream, and where they read and write states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import onnxruntime as ort

from coreai_onnx.errors import SessionError
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.states.binding import Binding
from coreai_onnx.runtime.states.held import (
    Kept,
    Memory,
    State,
    States,
    Type,
    array_in,
    bytes_of,
    new_memories,
)
from coreai_onnx.runtime.states.undo import Saved, UndoLog
from coreai_onnx.runtime.tensors.expressions import evaluated
from coreai_onnx.runtime.tensors.outputs import Array
from coreai_onnx.runtime.tensors.signature import Signature
from coreai_onnx.runtime.tensors.values import described, from_ort, has_memory, to_ort

BOUND_BYTES = 1 << 16
"""The memory of states of at least 64 KiB is kept from call to call. onnxruntime allocates smaller
ones: it is quick, earlier results stay valid, and a failed call changes none of them."""
_AHEAD = 1.5
"""Capacity of the memory of a state that grows, relative to its size."""


@dataclass(frozen=True)
class Targets:
    """The memory that a call writes new states to, where the stream provides it.

    Attributes:
        values: The values that outputs are to be bound to, by the name of the output.
        memories: Their memories, by the name of the state.
        overwritten: The states that the call updates in place, as arrays in their memory.
    """

    values: dict[str, ort.OrtValue] = field(default_factory=dict)
    memories: dict[str, Memory] = field(default_factory=dict)
    overwritten: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    """What a call starts from.

    Attributes:
        kept: The carried states that the call updates in place once more.
        moved: The other carried values, by the name of the input.
        types: Dtype and shape of one of each kind of both.
    """

    kept: Kept
    moved: dict[str, ort.OrtValue]
    types: dict[str, Type]


@dataclass
class Stream:
    """The calls of one entrypoint in a stream, and its states.

    A state that is updated in place has one memory. Any other has two, which hold the old and the
    new value in turn.

    Attributes:
        entrypoint: Its name.
        session: Its model.
        signature: The signature of the model.
        undo: The undo log of the states that may be updated in place.
        held: The states of the stream, also those of other entrypoints.
    """

    entrypoint: str
    session: ort.InferenceSession
    signature: Signature
    undo: UndoLog | None
    held: States = field(default_factory=States)

    def __post_init__(self) -> None:
        """Start every new state from its initial value."""
        self.states = {
            name: self.held.by_name.setdefault(name, State(info))
            for name, info in self.signature.new_states.items()
        }
        # Inputs of other entrypoints may have the names of these states.
        self.held.kept.clear()
        self._outputs = [node.name for node in self.session.get_outputs()]
        self._output_of = {state.input: state.output for state in self.signature.states}

    def start(self, arguments: Mapping[str, object]) -> Start:
        """Return the values that the next call starts from, without those that it is given.

        An input with the name of a state of another entrypoint takes the value of that state.
        """
        held, kept = self.held.by_name, self.held.kept.get(self.entrypoint)
        if kept is None or not kept.values.keys().isdisjoint(arguments):
            kept = self._keep({})
        moved = {
            name: value
            for name in kept.others
            if name not in arguments and (value := held[name].value) is not None
        }
        return Start(kept, moved, {**kept.types, **self._types(moved)})

    def _keep(self, values: Mapping[str, ort.OrtValue]) -> Kept:
        arrays = {}
        for name, value in values.items():
            memory, info = self.states[name].memory, self.signature.new_states[name]
            assert memory is not None, name
            arrays[name] = array_in(memory, info, tuple(value.shape()))
        carried = (info.name for info in self.signature.inputs if info.name in self.held.by_name)
        return Kept(
            values,
            self._types(values),
            () if self.undo is None else self.undo.overwritten(arrays),
            tuple(name for name in (*self.states, *carried) if name not in values),
            Binding(
                self.session,
                self._outputs,
                values,
                {self._output_of[name]: value for name, value in values.items()},
            ),
        )

    def _types(self, values: Mapping[str, ort.OrtValue]) -> dict[str, Type]:
        """Return the dtype and shape of values, one of each kind, by name."""
        kinds: dict[object, tuple[str, Type]] = {}
        for name, value in values.items():
            info = self.signature.info(name)
            type_of_value = described(value, info)
            kinds.setdefault((info.dtype, info.dims, type_of_value), (name, type_of_value))
        return dict(kinds.values())

    def targets(
        self, start: Start, arguments: Mapping[str, object], sizes: Mapping[str, int]
    ) -> Targets:
        """Return the memory for the new values of the states, where the stream provides it.

        Args:
            start: What the call starts from; what it keeps is bound already.
            arguments: The inputs and states that the call is given.
            sizes: The sizes of the symbolic dims of the call.
        """
        targets = Targets()
        fresh: dict[str, tuple[int, ...]] = {}
        missing: dict[str, int] = {}
        for name in start.kept.others:
            info = self.signature.new_states.get(name)
            shape = None if info is None else _shape(info, sizes)
            if info is None or shape is None or bytes_of(info, shape) < BOUND_BYTES:
                continue
            state = self.states[name]
            # A value that the call is given is memory of the caller, and without `state.memory` the
            # value is the one in the file: neither may be overwritten.
            in_place = self.undo is not None and name in self.undo.states
            if in_place and name not in arguments and state.memory is not None:
                array = array_in(state.memory, info, shape)
                targets.memories[name], targets.overwritten[name] = state.memory, array
                # The same OrtValue, not an equal one: `advance` tells by identity what has not
                # moved.
                is_same = state.value is not None and tuple(state.value.shape()) == shape
                value = state.value if is_same else to_ort(array)
                targets.values[self._output_of[name]] = value
                continue
            fresh[name], size = shape, bytes_of(info, shape)
            if state.spare is None or len(state.spare) < size:
                # What is updated in place does not grow.
                grows = shape != info.dims and not in_place
                missing[name], state.spare = int(size * _AHEAD) if grows else size, None
        for name, memory in new_memories(missing).items():
            self.states[name].spare = memory
        for name, shape in fresh.items():
            spare = self.states[name].spare
            assert spare is not None, name
            targets.memories[name] = spare
            array = array_in(spare, self.signature.new_states[name], shape)
            targets.values[self._output_of[name]] = to_ort(array)
        return targets

    def advance(
        self, start: Start, results: Mapping[str, ort.OrtValue], targets: Targets
    ) -> Callable[[], dict[str, Array]]:
        """Keep the states after a call, and return what reads them.

        Args:
            start: What the call started from.
            results: The outputs of the call, without the states that were kept.
            targets: The result of `targets`.
        """
        self.held.calls += 1
        values = {n: results[self._output_of[n]] for n in start.kept.others if n in self.states}
        unmoved = {name: x for name, x in values.items() if self._stays(name, x)}
        for name, value in values.items():
            state, memory = self.states[name], targets.memories.get(name)
            # The memories change places: that of the old value receives the one after the next
            # call.
            if memory is not state.memory and (state.spare is None or state.spare is memory):
                state.spare = state.memory
            state.memory, state.value = memory, value
        now = {**start.kept.values, **values} if values else start.kept.values
        if values:
            self.held.kept.clear()
            kept = start.kept
            if unmoved:
                kept = self._keep({**start.kept.values, **unmoved})
            if kept.values:
                self.held.kept[self.entrypoint] = kept
        return partial(self._read_after, self.held.calls, now)

    def _read_after(self, call: int, values: Mapping[str, ort.OrtValue]) -> dict[str, Array]:
        """Return copies of the states after a call, by its number.

        Raises:
            SessionError: If a later call has overwritten one of them.
        """
        if call != self.held.calls:
            info = self.signature.new_states
            gone = [name for name, value in values.items() if _is_bound(value, info[name])]
            if gone:
                raise SessionError(
                    f"a later call has overwritten the states {', '.join(map(repr, gone))}\n"
                    "  read outputs.states before the next call, or fork() the session before it"
                )
        return {name: _copied(x, self.signature.info(name)) for name, x in values.items()}

    def _stays(self, name: str, value: ort.OrtValue) -> bool:
        """Return whether later calls may write a state to the memory of its value unchecked."""
        # Otherwise its next shape may be another one.
        same_dims = (x[name].dims for x in (self.signature.state_inputs, self.signature.new_states))
        return value is self.states[name].value and len(set(same_dims)) == 1

    @contextmanager
    def undone_if_it_fails(
        self,
        start: Start,
        targets: Targets,
        feeds: Mapping[str, ort.OrtValue],
        sizes: Mapping[str, int],
    ) -> Iterator[None]:
        """Restore the states that a call updates in place if it fails, or Ctrl-C ends it.

        Args:
            start: What the call starts from.
            targets: The result of `targets`.
            feeds: The inputs of the call, without the states that are kept.
            sizes: The sizes of its symbolic dims.
        """
        saved: list[Saved] = []
        if self.undo is not None and self.held.undoes:
            overwritten = [*start.kept.overwritten, *self.undo.overwritten(targets.overwritten)]
            saved = self.undo.save(overwritten, {**feeds, **start.kept.values}, sizes)
        try:
            yield
        except BaseException:
            for elements in saved:
                elements.restore()
            raise

    def set(self, arrays: Mapping[str, Array]) -> None:
        """Replace the values of states by copies of arrays."""
        self.held.change()
        for name, array in arrays.items():
            info = self.signature.state_inputs[name]
            self.states[name].reset()
            # The caller may change the array afterwards.
            self.states[name].value = to_ort(array.copy(), info)

    def read(self, name: str) -> Array | None:
        """Return a copy of a state; None if it has its initial value."""
        value = self.states[name].value
        return None if value is None else _copied(value, self.signature.info(name))


def _is_bound(value: ort.OrtValue, info: TensorInfo) -> bool:
    return not info.is_complex and bytes_of(info, tuple(value.shape())) >= BOUND_BYTES


def _copied(value: ort.OrtValue, info: TensorInfo) -> Array:
    array = from_ort(value, info)
    return array if array.base is None else array.copy()


def _shape(info: TensorInfo, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the shape of an output in a call; None if a size is unknown or the dtype is packed."""
    if info.is_complex or not has_memory(info):
        return None
    return evaluated(info.dims, sizes)
