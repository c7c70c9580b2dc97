"""Lifetimes and origins of buffers, and the nodes that overwrite one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from coreai_onnx.errors import Where
from coreai_onnx.model.provenance.places import where_of
from coreai_onnx.model.provenance.source_lines import read_code
from coreai_onnx.runtime.memory.recorded_session import RecordedNode, Recording

_Key = tuple[tuple[int | str, ...], int]


@dataclass
class Buffer:
    """Memory that one or more values use.

    Attributes:
        values: Names of the values, in the order in which they are written.
        bytes: Its size.
        first: The step that allocates it: an index of the nodes.
        last: The step after which it is free.
    """

    values: list[str]
    bytes: int
    first: int
    last: int


def buffers(recording: Recording, *, shared: bool) -> list[Buffer]:
    """Return the buffers of a run, without those of its inputs and weights.

    Args:
        recording: The run.
        shared: Whether a result gets a buffer of the same shape that is no longer read, which is
            onnxruntime's default. Such a buffer stays allocated in between, so that onnxruntime
            needs more memory than the lifetimes of the values.
    """
    return _Allocation(recording, shared=shared).buffers


def live_bytes(allocated: Sequence[Buffer], steps: int) -> list[int]:
    """Return the bytes that are in use during each step."""
    changes = [0] * (steps + 1)
    for buffer in allocated:
        changes[buffer.first] += buffer.bytes
        changes[buffer.last + 1] -= buffer.bytes
    live, total = [], 0
    for change in changes[:-1]:
        total += change
        live.append(total)
    return live


class _Allocation:
    def __init__(self, recording: Recording, *, shared: bool) -> None:
        self.buffers: list[Buffer] = []
        self._recording, self._shared = recording, shared
        self._end = len(recording.nodes) - 1
        # None stands for memory that the run does not allocate: inputs, weights and views of them.
        self._of: dict[str, Buffer | None] = dict.fromkeys(recording.inputs)
        self._readers: Counter[int] = Counter()  # by buffer
        self._free: dict[_Key, list[Buffer]] = {}
        uses = Counter(name for node in recording.nodes for name in node.inputs)
        for step, node in enumerate(recording.nodes):
            self._write(step, node, uses)
            self._read(step, node)
            for name in node.outputs:
                if not uses[name] and (unread := self._of[name]) is not None:
                    unread.last = self._end  # onnxruntime releases memory after a reader only
                    self._release(unread)
        for name in recording.outputs:
            if (buffer := self._of.get(name)) is not None:
                buffer.last = self._end

    def _write(self, step: int, node: RecordedNode, uses: Counter[str]) -> None:
        for position, (name, size) in enumerate(zip(node.outputs, node.bytes, strict=True)):
            buffer, owned = None, False
            if uses[name]:
                buffer, owned = self._taken(node, name, size or 0, first=position == 0)
            if buffer is None and not owned:
                buffer = Buffer([], size or 0, step, step)
                self.buffers.append(buffer)
            self._of[name] = buffer
            if buffer is None:
                continue
            buffer.values.append(name)
            buffer.last = step
            self._readers[id(buffer)] += uses[name]

    def _taken(
        self, node: RecordedNode, name: str, size: int, *, first: bool
    ) -> tuple[Buffer | None, bool]:
        """Return a buffer that exists; True without one means the memory of an input."""
        # An output outlives the run, so that onnxruntime never puts it into another buffer.
        if name in self._recording.outputs or not node.inputs:
            return None, False
        if first and is_view(node):
            return self._of.get(node.inputs[0]), node.inputs[0] in self._of
        if first and (source := overwritten(node)) is not None:
            buffer = self._of.get(source)
            if buffer is not None and buffer.bytes == size and self._is_last_read(buffer):
                return buffer, True
        # The buffer that became free last is taken first, in the order of onnxruntime's planner.
        free = self._free.get(self._key(name, size) or ((), -1))
        return (free.pop(), True) if free else (None, False)

    def _is_last_read(self, buffer: Buffer) -> bool:
        kept = any(name in self._recording.outputs for name in buffer.values)
        # `_write` comes before `_read`: the one reader that is left is the node itself.
        return not kept and self._readers[id(buffer)] == 1

    def _read(self, step: int, node: RecordedNode) -> None:
        for name in node.inputs:
            buffer = self._of.get(name)
            if buffer is not None:
                buffer.last = step
                self._readers[id(buffer)] -= 1
                self._release(buffer)

    def _release(self, buffer: Buffer) -> None:
        """Offer a buffer that is no longer read to later results."""
        if not self._shared:
            return
        kept = any(value in self._recording.outputs for value in buffer.values)
        key = self._key(buffer.values[0], buffer.bytes)
        if not kept and key is not None and not self._readers[id(buffer)]:
            self._free.setdefault(key, []).append(buffer)

    def _key(self, name: str, size: int) -> _Key | None:
        """Return what two values of one shape have in common, as far as it is known."""
        dims = self._recording.shapes.get(name)
        # onnxruntime plans before it knows the sizes: two dims without names may differ.
        return None if dims is None or "" in dims else (dims, size)


VIEWS = frozenset("Reshape Flatten Squeeze Unsqueeze Identity".split())
"""Operators whose result is the memory of the first input, whoever else reads it."""

IN_PLACE = frozenset(
    """
    Cast Celu Clip Elu HardSigmoid LeakyRelu LogSoftmax Relu ScatterElements Selu Shrink Sigmoid
    Softmax Softplus Softsign Tanh ThresholdedRelu Trilu
    """.split()
)
"""Operators whose result takes the memory of the first input, if that has the same size and no
other reader."""

_KERNELS = "kv_cache_update rope geglu swiglu add_bias add_low_rank all_reduce softmax".split()
_OTHERS = {
    **{("ai.coreai", name): 0 for name in _KERNELS},  # they declare it with InPlace()
    ("com.microsoft", "FusedConv"): 3,  # the summand
    ("com.microsoft.nchwc", "Conv"): 3,
}
_ONNX = ("", "ai.onnx")


def is_view(node: RecordedNode) -> bool:
    """Return whether the result of a node is the memory of its first input."""
    return node.domain in _ONNX and node.op in VIEWS


def overwritten(node: RecordedNode) -> str | None:
    """Return the input whose memory the result of a node may take, or None."""
    if node.domain in _ONNX:
        index = 0 if node.op in IN_PLACE else None
    else:
        index = _OTHERS.get((node.domain, node.op.partition(".")[0]))
    return None if index is None or index >= len(node.inputs) else node.inputs[index]


_UNKNOWN = Where("", "", "", "")


class Origins:
    """The places in the user's code that the values of a model come from."""

    def __init__(self, model: ir.Model) -> None:
        """Read the places from the model, as it was before onnxruntime optimized it."""
        code = read_code(model.metadata_props)
        self._places = {
            value.name: where_of(node, code) for node in model.graph for value in node.outputs
        }

    def of(self, name: str, recording: Recording) -> Where:
        """Return the place of a value, or of the first known value that is computed from it.

        onnxruntime gives new names to values in the bodies of functions and to those in another
        layout; the results of functions, and the nodes in another layout, keep theirs.
        """
        derived = {name}
        for node in recording.nodes:
            if derived & {*node.inputs}:
                derived |= {*node.outputs}
            for value in node.outputs:
                place = self._places.get(value) or self._places.get(_fused_from(node.name))
                if value in derived and place is not None:
                    return place
        return _UNKNOWN


def _fused_from(node: str) -> str:
    """Return the value that a node of a convolution in onnxruntime's own layout is named after."""
    return node.removesuffix("_nchwc")
