"""The states of one stream of calls, and the memory that they are kept in."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnxruntime as ort

from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.states.binding import Binding
from coreai_onnx.runtime.states.undo import Overwritten
from coreai_onnx.runtime.tensors.outputs import Array
from coreai_onnx.runtime.tensors.values import has_memory, to_ort

_ALIGNMENT = 64
"""Bytes; a line of the cache, and the widest register."""

Memory = np.ndarray[tuple[int], np.dtype[np.uint8]]
Type = tuple[str, tuple[int, ...]]
"""Dtype and shape of a value."""
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of states by name."""


@dataclass(frozen=True)
class Kept:
    """The states that calls of an entrypoint update in place, and what each call needs of them.

    A decoder has dozens of them, and a call of 6 ms spent 1 ms on deriving it again: "Calls with a
    static cache" in docs/internals/performance_log.md.

    Attributes:
        values: Their values, which are inputs and outputs of each call.
        types: Dtype and shape of one of each kind of them, by name.
        overwritten: Their memory.
        others: The names of the other inputs that may be carried.
        binding: Runs the model on them.
    """

    values: Mapping[str, ort.OrtValue]
    types: Mapping[str, Type]
    overwritten: Sequence[Overwritten]
    others: tuple[str, ...]
    binding: Binding


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

    def copy(self, memory: Memory | None) -> State:
        """Return a state with a copy of the value, in other memory of the same size."""
        if self.value is None or self.memory is None or memory is None:
            return State(self.info, self.value)  # onnxruntime never writes to an input
        memory[:] = self.memory
        value = to_ort(array_in(memory, self.info, tuple(self.value.shape())))
        return State(self.info, value, memory)


@dataclass
class States:
    """One stream of calls, which may go to several entrypoints, and its states.

    Attributes:
        by_name: The states by name; entrypoints share those of one name.
        calls: Number of changes of the states so far.
        kept: What the calls of entrypoints need of the states that stay in place, by entrypoint;
            empty after a change that moves one.
        lock: Held by the thread that makes a call.
        closed: Whether no further call may be made.
        undoes: Whether a call that fails leaves the states as they were.
    """

    by_name: dict[str, State] = field(default_factory=dict)
    calls: int = 0
    kept: dict[str, Kept] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: bool = False
    undoes: bool = True

    @classmethod
    def of_zeros(cls, infos: Mapping[str, TensorInfo], shapes: Shapes, *, undoes: bool) -> States:
        """Return states that start as zeros, in memory that the next call may update in place."""
        by_name = {}
        sizes = {name: bytes_of(infos[name], shape) for name, shape in shapes.items()}
        # The system provides zeros when they are written to: a cache takes what it holds.
        for name, memory in new_memories(sizes, np.zeros).items():
            info = infos[name]
            value = to_ort(array_in(memory, info, shapes[name]), info)
            # Pairs of real numbers, and packed ones, are copies.
            is_memory = has_memory(info) and not info.is_complex
            by_name[name] = State(info, value, memory if is_memory else None)
        return cls(by_name, undoes=undoes)

    def change(self) -> None:
        """Count a change that moves states."""
        self.calls += 1
        self.kept.clear()

    def reset(self) -> None:
        """Return every state to its initial value, and keep the memory for the next call."""
        self.change()
        for state in self.by_name.values():
            state.reset()

    def clear(self) -> None:
        """Release the values and the memory of every state."""
        self.kept.clear()
        for state in self.by_name.values():
            state.value, state.memory, state.spare = None, None, None

    def fork(self) -> States:
        """Return copies of the states."""
        sizes = {n: len(x.memory) for n, x in self.by_name.items() if x.memory is not None}
        memories = new_memories(sizes)
        by_name = {n: state.copy(memories.get(n)) for n, state in self.by_name.items()}
        return States(by_name, undoes=self.undoes)


def bytes_of(info: TensorInfo, shape: tuple[int, ...]) -> int:
    """Return the bytes of an array."""
    return math.prod(shape) * np.dtype(info.numpy_dtype).itemsize


def new_memories(
    sizes: Mapping[str, int], allocate: Callable[..., Memory] = np.empty
) -> dict[str, Memory]:
    """Return memory by name; that of one size is one block, which the undo log copies at once."""
    memories: dict[str, Memory] = {}
    for size in set(sizes.values()):
        names = [name for name in sizes if sizes[name] == size]
        step = -(-size // _ALIGNMENT) * _ALIGNMENT
        # numpy aligns no better than malloc does: 16 bytes on most systems.
        raw = allocate(len(names) * step + _ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        memories |= {n: raw[start + i * step :][:size] for i, n in enumerate(names)}
    return memories


def array_in(memory: Memory, info: TensorInfo, shape: tuple[int, ...]) -> Array:
    """Return the start of a memory as an array."""
    return memory[: bytes_of(info, shape)].view(info.numpy_dtype).reshape(shape)
