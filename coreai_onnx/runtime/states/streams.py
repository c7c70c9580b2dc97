"""The states of one stream of calls, and the memory that they are kept in."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnxruntime as ort

from coreai_onnx.errors import SessionError
from coreai_onnx.model.interface import Dim, TensorInfo
from coreai_onnx.runtime.tensors.expressions import evaluated
from coreai_onnx.runtime.tensors.outputs import Array
from coreai_onnx.runtime.tensors.signature import Signature
from coreai_onnx.runtime.tensors.values import described, from_ort, to_ort

BOUND_BYTES = 1 << 16
"""The memory of states of at least 64 KiB is kept from call to call. onnxruntime allocates smaller
ones: it is quick, earlier results stay valid, and a failed call changes none of them."""
_AHEAD = 1.5
"""Capacity of the memory of a state that grows, relative to its size."""
_ALIGNMENT = 64
"""Bytes; a line of the cache, and the widest register."""

Memory = np.ndarray[tuple[int], np.dtype[np.uint8]]
Type = tuple[str, tuple[int, ...]]
"""Dtype and shape of a value."""


@dataclass
class State:
    """One state of a stream.

    Attributes:
        info: Dtype and dims of its new values.
        value: The present value; None for the initial value in the file.
        memory: The memory of the value, if it is the stream's own.
        spare: A second memory, for the value after the next call.
    """

    info: TensorInfo
    value: ort.OrtValue | None = None
    memory: Memory | None = None
    spare: Memory | None = None

    def reset(self) -> None:
        """Return to the initial value, and keep the memory for the next call."""
        spare = self.spare if self.spare is not None else self.memory
        self.value, self.memory, self.spare = None, None, spare

    def copy(self) -> State:
        """Return a state with a copy of the value."""
        if self.value is None or self.memory is None:  # onnxruntime never writes to an input
            return State(self.info, self.value)
        memory = _enough(None, len(self.memory), grows=False)
        memory[:] = self.memory
        value = to_ort(_array(memory, self.info, tuple(self.value.shape())))
        return State(self.info, value, memory)


@dataclass
class States:
    """The states of one stream of calls, which may go to several entrypoints.

    Attributes:
        by_name: The states by name; entrypoints share those of one name.
        calls: Number of changes of the states so far.
    """

    by_name: dict[str, State] = field(default_factory=dict)
    calls: int = 0

    def reset(self) -> None:
        """Return every state to its initial value, and keep the memory for the next call."""
        self.calls += 1
        for state in self.by_name.values():
            state.reset()

    def clear(self) -> None:
        """Release the values and the memory of every state."""
        for state in self.by_name.values():
            state.value, state.memory, state.spare = None, None, None

    def fork(self) -> States:
        """Return copies of the states."""
        return States({name: state.copy() for name, state in self.by_name.items()})


@dataclass
class CallStream:
    """One stream of calls, which the sessions of several entrypoints may make."""

    states: States = field(default_factory=States)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False


@dataclass(frozen=True)
class Targets:
    """The memory that a call writes new states to, where the stream provides it.

    Attributes:
        values: The values that outputs are to be bound to, by the name of the state.
        memories: Their memories.
        overwritten: The states that the call updates in place, as arrays in their memory.
    """

    values: dict[str, ort.OrtValue] = field(default_factory=dict)
    memories: dict[str, Memory] = field(default_factory=dict)
    overwritten: dict[str, Array] = field(default_factory=dict)


@dataclass
class _Unmoved:
    """The states that the last call updated in place, and what the next call needs of them.

    A decoder has dozens of them, and a call of 6 ms spent 1 ms on deriving it again.

    Attributes:
        calls: The number of changes of the states after the call.
        values: Their values: the same as before the call.
        types: The result of `_types`.
        targets: Their memory, to be updated again.
        shapes: Their shapes by their dims.
    """

    calls: int = 0
    values: dict[str, ort.OrtValue] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)
    targets: Targets = field(default_factory=Targets)
    shapes: dict[tuple[Dim, ...], tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    """What a call starts from.

    Attributes:
        values: The carried values, by the name of the input.
        types: Dtype and shape of one of each kind of them.
        unmoved: The states among them that need no further work.
    """

    values: dict[str, ort.OrtValue]
    types: dict[str, Type]
    unmoved: _Unmoved


@dataclass
class Stream:
    """The calls of one entrypoint in a stream, and its states.

    A state that is updated in place has one memory. Any other has two, which hold the old and the
    new value in turn.

    Attributes:
        signature: The signature of the model.
        in_place: The states that may be updated in place.
        held: The states of the stream, also those of other entrypoints.
    """

    signature: Signature
    in_place: Collection[str]
    held: States = field(default_factory=States)

    def __post_init__(self) -> None:
        """Start every new state from its initial value."""
        self.states = {
            name: self.held.by_name.setdefault(name, State(info))
            for name, info in self.signature.new_states.items()
        }
        # A token of a 12-layer Llama took 0.82 ms more than onnxruntime alone with it, and 1.50 ms
        # without: python -m tools.bench.static_cache, in docs/internals/performance_log.md.
        self._unmoved = _Unmoved()

    def start(self, given: Mapping[str, object]) -> Start:
        """Return the values that the next call starts from, without those that it is given.

        An input with the name of a state of another entrypoint takes the value of that state.
        """
        held, unmoved = self.held.by_name, self._unmoved
        # Another entrypoint or the user has changed a state since this one's last call.
        if unmoved.calls != self.held.calls or not unmoved.values.keys().isdisjoint(given):
            unmoved = _Unmoved()
        names = [*self.states, *(x.name for x in self.signature.inputs if x.name in held)]
        others = {
            name: value
            for name in names
            if name not in unmoved.values
            and name not in given
            and (value := held[name].value) is not None
        }
        return Start(unmoved.values | others, unmoved.types | self._types(others), unmoved)

    def _types(self, values: Mapping[str, ort.OrtValue]) -> dict[str, Type]:
        """Return the dtype and shape of values, one of each kind, by name."""
        kinds: dict[object, tuple[str, Type]] = {}
        for name, value in values.items():
            info = self.signature.info(name)
            found = described(value, info)
            kinds.setdefault((info.dtype, info.dims, found), (name, found))
        return dict(kinds.values())

    def targets(
        self, start: Start, given: Mapping[str, object], sizes: Mapping[str, int]
    ) -> Targets:
        """Return the memory for the new values of the states, where the stream provides it.

        Args:
            start: What the call starts from.
            given: The states that the call is given.
            sizes: The sizes of the symbolic dims of the call.
        """
        same = all(evaluated(d, sizes) == shape for d, shape in start.unmoved.shapes.items())
        known = start.unmoved.targets if same else Targets()
        # The usual call of a decoder: every state stays where it is.
        if len(known.values) == len(self.states):
            return known
        found = Targets({**known.values}, {**known.memories}, {**known.overwritten})
        for name, state in self.states.items():
            info = self.signature.new_states.get(name)
            if info is None or name in found.values:
                continue
            shape = _shape(info, sizes)
            if shape is None or _bytes(info, shape) < BOUND_BYTES:
                continue
            # A value that the call is given is memory of the caller, and without `state.memory` the
            # value is the one in the file: neither may be overwritten.
            if name in self.in_place and name not in given and state.memory is not None:
                array = _array(state.memory, info, shape)
                found.memories[name], found.overwritten[name] = state.memory, array
                # The same OrtValue, not an equal one: `advance` tells by identity what has not
                # moved.
                is_same = state.value is not None and tuple(state.value.shape()) == shape
                found.values[name] = state.value if is_same else to_ort(array)
                continue
            memory = _enough(state.spare, _bytes(info, shape), grows=shape != info.dims)
            found.memories[name] = state.spare = memory
            found.values[name] = to_ort(_array(memory, info, shape))
        return found

    def advance(self, start: Start, values: Mapping[str, ort.OrtValue], targets: Targets) -> None:
        """Keep the states after a call.

        Args:
            start: What the call started from.
            values: The new value of every state.
            targets: The result of `targets`.
        """
        self.held.calls += 1
        unmoved = {name: x for name, x in values.items() if x is self.states[name].value}
        for name in values.keys() - unmoved.keys():
            state, memory = self.states[name], targets.memories.get(name)
            # The memories change places: that of the old value receives the one after the next
            # call.
            if memory is not state.memory and (state.spare is None or state.spare is memory):
                state.spare = state.memory
            state.memory, state.value = memory, values[name]
        if start.unmoved is not self._unmoved or unmoved.keys() != self._unmoved.values.keys():
            self._unmoved = self._described(unmoved, targets)
        self._unmoved.calls = self.held.calls

    def _described(self, values: dict[str, ort.OrtValue], targets: Targets) -> _Unmoved:
        """Return what the next call needs of states that were updated in place."""
        dims = {name: self.signature.new_states[name].dims for name in values}
        parts = (targets.values, targets.memories, targets.overwritten)
        kept = Targets(*({name: part[name] for name in values} for part in parts))
        shapes = {dims[name]: array.shape for name, array in kept.overwritten.items()}
        return _Unmoved(0, values, self._types(values), kept, shapes)

    def set(self, arrays: Mapping[str, Array]) -> None:
        """Replace the values of states by copies of arrays."""
        self.held.calls += 1
        for name, array in arrays.items():
            info = self.signature.state_inputs[name]
            self.states[name].reset()
            # The caller may change the array afterwards.
            self.states[name].value = to_ort(array.copy(), info)

    def read(self, name: str) -> Array | None:
        """Return a copy of a state; None if it has its initial value."""
        value = self.states[name].value
        return None if value is None else _copied(value, self.signature.info(name))

    def reader(self, values: Mapping[str, ort.OrtValue]) -> _Reader:
        """Return a function that reads the states of the call that was made last."""
        return _Reader(self, self.held.calls, dict(values))


@dataclass(frozen=True)
class _Reader:
    """Reads the states after one call.

    Attributes:
        stream: The stream.
        call: The number of the call.
        values: The states after it.
    """

    stream: Stream
    call: int
    values: Mapping[str, ort.OrtValue]

    def __call__(self) -> dict[str, Array]:
        """Return copies of the states.

        Raises:
            SessionError: If a later call has overwritten one of them.
        """
        if self.call != self.stream.held.calls:
            info = self.stream.signature.new_states
            gone = [name for name, value in self.values.items() if _is_bound(value, info[name])]
            if gone:
                raise SessionError(
                    f"a later call has overwritten the states {', '.join(map(repr, gone))}\n"
                    "  read outputs.states before the next call, or fork() the session before it"
                )
        info_of = self.stream.signature.info
        return {name: _copied(value, info_of(name)) for name, value in self.values.items()}


def _is_bound(value: ort.OrtValue, info: TensorInfo) -> bool:
    return not info.is_complex and _bytes(info, tuple(value.shape())) >= BOUND_BYTES


def _copied(value: ort.OrtValue, info: TensorInfo) -> Array:
    array = from_ort(value, info)
    return array if array.base is None else array.copy()


def _shape(info: TensorInfo, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the shape of an output in a call; None if a size is unknown or the dtype is packed."""
    if info.is_complex or info.dtype.endswith("int4"):
        return None
    return evaluated(info.dims, sizes)


def _bytes(info: TensorInfo, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * np.dtype(info.numpy_dtype).itemsize


def _enough(spare: Memory | None, size: int, *, grows: bool) -> Memory:
    """Return the spare memory if it has the size; otherwise new memory, with capacity ahead."""
    if spare is not None and len(spare) >= size:
        return spare
    size = int(size * _AHEAD) if grows else size
    # numpy aligns no better than malloc does: 16 bytes on most systems.
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size]


def _array(memory: Memory, info: TensorInfo, shape: tuple[int, ...]) -> Array:
    """Return the start of a memory as an array."""
    return memory[: _bytes(info, shape)].view(info.numpy_dtype).reshape(shape)
