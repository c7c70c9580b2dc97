"""The memory plan of a model: what a run allocates, when, for which values and lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import ml_dtypes  # noqa: F401 - registers bfloat16 with numpy
import numpy as np

from coreai_onnx.errors import InputError, SessionError, Where
from coreai_onnx.messages import render, size_text
from coreai_onnx.model.inventory import op_name
from coreai_onnx.runtime.memory.lifetimes import Buffer, Origins, buffers, live_bytes
from coreai_onnx.runtime.memory.placement import ALIGNMENT, Algorithm, PlannedBuffer, greedy, place
from coreai_onnx.runtime.memory.recorded_session import Recording, recorded_session
from coreai_onnx.runtime.sessions.entrypoints import HasModels
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.sessions.sources import Source
from coreai_onnx.runtime.tensors.outputs import Array
from coreai_onnx.targets.providers import Choice, on_cpu

_ROWS = 12
"""Values that the text of a plan lists."""
_EIGHTHS = " ▁▂▃▄▅▆▇█"

Inputs = Sequence[object] | Mapping[str, object] | Callable[[Session], Mapping[str, object]] | None


@dataclass(frozen=True)
class LiveValue:
    """A buffer at the peak.

    Attributes:
        names: Names of the values that use it, in order: the others are views of the first, or
            written over it.
        bytes: Its size.
        op: The operator that writes it, ``MatMul`` or ``ai.coreai::rms_norm``.
        where: Module, class, source line and its text, as far as the model has them.
    """

    names: tuple[str, ...]
    bytes: int
    op: str
    where: Where


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of one run; prints as a summary, a chart and a table of the values at the peak.

    Sizes are in bytes. Steps are the nodes of the graph in the order in which onnxruntime runs
    them, after its own optimizations.

    Attributes:
        sizes: The symbolic dims of the inputs and their sizes in this run.
        kernels: Whether the native kernels ran.
        low_memory: Whether results are released after their last reader.
        nodes: Name of the node of each step.
        live: Bytes that the plan has allocated in each step. It follows onnxruntime's rules: views,
            results written over an input and, unless ``low_memory``, results in the buffer of an
            earlier one of the same shape.
        lifetimes: The same if every value is released after its last reader.
        used: Bytes that onnxruntime's arena had in use after each step of the recorded run, and the
            inputs if the plan includes them; empty if this onnxruntime does not count them.
        arena: Bytes that the arena held at the end. It grows by blocks whose size doubles.
        inputs: Bytes of the inputs, which are memory of the caller.
        outputs: Bytes of the outputs that onnxruntime allocated, which are part of ``live``.
        weights: Bytes of the weights, which are not.
        at_peak: The buffers that exist at the peak, the largest first.
        buffers: All buffers in the order in which they are written, each with its offset in a block
            of ``total`` bytes. onnxruntime places values itself; the block is what a runtime needs
            that follows the plan.
        results: Bytes of the results of nodes, by name.
    """

    sizes: Mapping[str, int]
    kernels: bool
    low_memory: bool
    nodes: tuple[str, ...]
    live: tuple[int, ...]
    lifetimes: tuple[int, ...]
    used: tuple[int, ...]
    arena: int
    inputs: int
    outputs: int
    weights: int
    at_peak: tuple[LiveValue, ...]
    buffers: tuple[PlannedBuffer, ...] = ()
    results: Mapping[str, int] = field(default_factory=dict, repr=False)

    @cached_property
    def peak(self) -> int:
        """The maximum of ``live``."""
        return max(self.live, default=0)

    @cached_property
    def peak_step(self) -> int:
        """The first step in which ``live`` is at its maximum."""
        return self.live.index(self.peak) if self.live else 0

    @property
    def peak_used(self) -> int:
        """The maximum of ``used``."""
        return max(self.used, default=0)

    @property
    def total(self) -> int:
        """The size of the block that ``buffers`` are in."""
        return max((buffer.offset + buffer.bytes for buffer in self.buffers), default=0)

    @property
    def peak_of_lifetimes(self) -> int:
        """The maximum of ``lifetimes``: the peak with ``low_memory``."""
        return max(self.lifetimes, default=0)

    def __str__(self) -> str:
        """Return a summary, a chart and a table of the values at the peak."""
        at = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        how = "kernels" if self.kernels else "function bodies"
        head = f"{len(self.nodes)} nodes on {how}{f' at {at}' if at else ''}"
        # onnxruntime computes a model of constants when it loads it: there is nothing to draw.
        if not self.nodes:
            return head
        parts = [head, self._summary(), chart(self.live), self._table()]
        return "\n\n".join(parts)

    def _summary(self) -> str:
        ratio = self.peak_used / self.peak if self.peak else 1.0
        compared = f"{ratio:.2f} of the plan, in onnxruntime" if self.used else "not counted"
        rows = [
            ("weights", size_text(self.weights), ""),
            ("inputs", size_text(self.inputs), "memory of the caller"),
            ("outputs", size_text(self.outputs), "part of the peak"),
            ("peak", size_text(self.peak), f"at {self.nodes[self.peak_step]}"),
            ("  used", size_text(self.peak_used), compared),
            ("  held", size_text(self.arena), "by onnxruntime's arena, with rounding"),
        ]
        if not self.low_memory:
            rows.insert(4, ("  lifetimes", size_text(self.peak_of_lifetimes), "low_memory=True"))
        return render(("memory", "size", ""), rows)

    def _table(self) -> str:
        shown = self.at_peak[:_ROWS]
        rows = [
            (size_text(v.bytes), v.names[0], v.op, v.where.module, v.where.source, v.where.code)
            for v in shown
        ]
        text = render(("at the peak", "value", "written by", "module", "line", "code"), rows)
        rest = self.at_peak[_ROWS:]
        if not rest:
            return text
        return f"{text}\n… {len(rest)} more, {size_text(sum(v.bytes for v in rest))}"


def memory_plan(
    source: Source | HasModels,
    inputs: Inputs = None,
    *,
    sizes: Mapping[str, int] | None = None,
    entrypoint: str | None = None,
    kernels: bool | None = None,
    low_memory: bool = False,
    provider: Choice | None = None,
    with_inputs: bool = False,
    with_outputs: bool = True,
    with_states: bool = False,
    algorithm: Algorithm = greedy,
    overlap: bool = False,
    alignment: int = ALIGNMENT,
) -> MemoryPlan:
    """Return the memory that a model takes at given sizes.

    The model runs once with one thread. Its nodes, their order and the sizes of their results are
    those of this run; the plan is computed from them, and compared with the arena.

    Args:
        source: As for `coreai_onnx.session`.
        inputs: Inputs by position or by name, or a function that returns them by name for a
            session. None uses zeros.
        sizes: Sizes of symbolic dims, for inputs that are not given; 1, or the nearest size that a
            dim may have, for the others.
        entrypoint: The entrypoint to run; see `coreai_onnx.session`.
        kernels: Whether composites run on native kernels; see `coreai_onnx.session`.
        low_memory: Whether results are released after their last reader; see
            `coreai_onnx.session`.
        provider: None or the CPU, perhaps with options. onnxruntime does not count the memory of
            other execution providers.
        with_inputs: Whether the plan includes the inputs, which are memory of the caller.
        with_outputs: Whether onnxruntime allocates the outputs. Otherwise they are written to
            memory of the caller by `Session.run_into`, as far as the sizes of the inputs determine
            their shapes.
        with_states: Whether the plan includes the states, which are memory of the session. Their
            new values are outputs.
        algorithm: Places the buffers: `greedy`, `naive`, or a function of buffers and alignment
            that returns their offsets.
        overlap: Whether the algorithm may give the same memory to buffers that are used at once.
        alignment: What offsets are multiples of, in bytes.

    Raises:
        SessionError: If the model cannot be opened or run, or on a provider other than the CPU.
        InputError: If an input is wrong, or there is no such dim.
        PassError: If the algorithm raises or overlaps buffers.
    """
    if not on_cpu(provider):
        raise SessionError(
            "memory is measured on the CPU: onnxruntime does not count the memory of other "
            "execution providers; leave the provider out"
        )
    settings = {"kernels": kernels, "low_memory": low_memory, "providers": provider}
    with recorded_session(source, entrypoint=entrypoint, threads=1, **settings) as recorded:
        session = recorded.session
        feeds = _example_inputs(session, inputs, sizes or {})
        into = {} if with_outputs else session.output_arrays(feeds)
        session.run_into(into, **feeds)
        kept = {**(feeds if with_inputs else {}), **(session.state if with_states else {})}
        plan = _plan(session, recorded.recording(), feeds, into, kept, low_memory=low_memory)
    return replace(plan, buffers=place(plan.buffers, algorithm, alignment, overlap=overlap))


def _plan(
    session: Session,
    recording: Recording,
    feeds: Mapping[str, object],
    into: Collection[str],
    kept: Mapping[str, object],
    *,
    low_memory: bool,
) -> MemoryPlan:
    """Return the plan of a run with these inputs and these outputs in memory of the caller.

    It includes the inputs and states in ``kept``.
    """
    shapes = {name: tuple(getattr(value, "shape", ())) for name, value in feeds.items()}
    added = sum(map(_size, kept.values()))
    # Outputs in memory of the caller are not allocated by the run.
    planned, alone = (
        [b for b in buffers(recording, shared=shared) if not {*into} & {*b.values}]
        for shared in (not low_memory, False)
    )
    steps = len(recording.nodes)
    results = (pair for n in recording.nodes for pair in zip(n.outputs, n.bytes, strict=True))
    live = [count + added for count in live_bytes(planned, steps)]
    used = [n.in_use - recording.before for n in recording.nodes if n.in_use is not None]
    return MemoryPlan(
        sizes=_sizes(session, shapes),
        kernels=session.kernels,
        low_memory=low_memory,
        nodes=tuple(node.name for node in recording.nodes),
        live=tuple(live),
        lifetimes=tuple(count + added for count in live_bytes(alone, steps)),
        used=tuple(count + added for count in used),
        arena=recording.arena,
        inputs=sum(map(_size, feeds.values())),
        outputs=sum(b.bytes for b in planned if recording.outputs & {*b.values}),
        weights=recording.weights,
        at_peak=_at_peak(planned, live, recording, Origins(session.model)),
        buffers=(
            # The caller may read an input or a state at any time: it takes memory in every step.
            *(_planned([name], _size(value), 0, steps - 1) for name, value in kept.items()),
            *(_planned(b.values, b.bytes, b.first, b.last) for b in alone),
        ),
        results={name: size or 0 for name, size in results},
    )


def _planned(names: Sequence[str], size: int, first: int, last: int) -> PlannedBuffer:
    return PlannedBuffer(tuple(names), size, first, last)


def _size(value: object) -> int:
    # A Python number has no `nbytes`; 8 bytes hold any that onnxruntime takes.
    return int(getattr(value, "nbytes", 8))


def _at_peak(
    planned: Sequence[Buffer], live: Sequence[int], recording: Recording, origins: Origins
) -> tuple[LiveValue, ...]:
    step = live.index(max(live)) if live else -1
    writers = {name: node for node in recording.nodes for name in node.outputs}
    return tuple(
        LiveValue(
            tuple(buffer.values),
            buffer.bytes,
            op_name(writers[buffer.values[0]].domain, writers[buffer.values[0]].op),
            origins.of(buffer.values[0], recording),
        )
        for buffer in sorted(planned, key=lambda b: -b.bytes)
        if buffer.first <= step <= buffer.last
    )


def _example_inputs(
    session: Session, inputs: Inputs, sizes: Mapping[str, int]
) -> dict[str, object]:
    """Return the inputs by name: the given ones, or zeros of the given sizes."""
    if callable(inputs):
        return dict(inputs(session))
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if inputs is not None:
        if len(inputs) > len(session.inputs):
            raise InputError(f"{len(inputs)} inputs given, {len(session.inputs)} expected")
        return {i.name: value for i, value in zip(session.inputs, inputs, strict=False)}
    dims = session.example_sizes({}, default=1)
    if strangers := [name for name in sizes if name not in dims]:
        there = f"there are {', '.join(dims)}" if dims else "all dims are fixed"
        raise InputError(f"the inputs have no dim {strangers[0]!r}; {there}")
    filled = session.example_sizes(sizes, default=1)
    return {info.name: _zeros(info.numpy_dtype, info.dims, filled) for info in session.inputs}


def _zeros(dtype: str, dims: Sequence[int | str | None], sizes: Mapping[str, int]) -> Array:
    return np.zeros(
        [dim if isinstance(dim, int) else sizes.get(dim or "", 1) for dim in dims], dtype
    )


def _sizes(session: Session, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for info in session.inputs:
        for dim, size in zip(info.dims, shapes.get(info.name, ()), strict=False):
            if isinstance(dim, str):
                sizes.setdefault(dim, size)
    return sizes


def chart(values: Sequence[int], *, columns: int = 64, rows: int = 8) -> str:
    """Draw values as bars, from the first to the last; a bar is the maximum of its steps.

    Args:
        values: Bytes by step.
        columns: Maximum number of bars.
        rows: Lines of the tallest bar.
    """
    bars = [max(part) for part in _parts(values, columns)]
    top = max(bars, default=0)
    labels = (size_text(top), "0 B")
    width = max(map(len, labels))
    lines = []
    for row in reversed(range(rows)):
        label = labels[0] if row == rows - 1 else labels[1] if row == 0 else ""
        cells = "".join(_cell(bar * rows / max(top, 1) - row) for bar in bars)
        lines.append(f"{label:>{width}} │{cells}".rstrip())
    return "\n".join(lines)


def _parts(values: Sequence[int], columns: int) -> list[Sequence[int]]:
    count = min(columns, len(values))
    bounds = [len(values) * i // count for i in range(count + 1)] if count else []
    return [values[first:last] for first, last in pairwise(bounds)]


def _cell(height: float) -> str:
    return _EIGHTHS[round(8 * min(max(height, 0.0), 1.0))]
