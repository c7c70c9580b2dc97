"""The order of nodes that takes the least memory, as measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from coreai_onnx.memory.ordering import apply_order, smaller_first
from coreai_onnx.memory.plan import MemoryPlan, example_inputs, plan_of
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.recorded_session import RecordedSession


def reorder(
    program: OnnxProgram,
    inputs: Sequence[object] | Mapping[str, object] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    entrypoint: str | None = None,
    kernels: bool | None = None,
    low_memory: bool = False,
) -> tuple[MemoryPlan, MemoryPlan]:
    """Reorder the nodes of a model if that lowers its peak; what it computes is the same.

    onnxruntime runs the operands of a node in an order that follows the order of the nodes in the
    file.

    Args:
        program: The program; its model is changed.
        inputs: As for `memory_plan`.
        sizes: As for `memory_plan`.
        entrypoint: As for `memory_plan`.
        kernels: As for `memory_plan`.
        low_memory: As for `memory_plan`.

    Returns:
        The plans before and after. They are equal if no better order was found.

    Raises:
        SessionError: As `memory_plan`; the model is as it was.
        InputError: As `memory_plan`.
    """
    search = _Search(program, inputs, sizes or {}, entrypoint, kernels, low_memory=low_memory)
    before, graph, measured = search.run()
    present = list(graph)
    better = smaller_first(graph, measured)
    try:
        apply_order(graph, better)
        after, _, _ = search.run()
    except BaseException:
        apply_order(graph, present)
        raise
    if after.peak < before.peak:
        return before, after
    apply_order(graph, present)
    return before, before


class _Search:
    def __init__(
        self,
        program: OnnxProgram,
        inputs: Sequence[object] | Mapping[str, object] | None,
        sizes: Mapping[str, int],
        entrypoint: str | None,
        kernels: bool | None,  # noqa: FBT001 - None is a third value
        *,
        low_memory: bool,
    ) -> None:
        self._program, self._inputs, self._sizes = program, inputs, sizes
        self._entrypoint, self._kernels, self._low_memory = entrypoint, kernels, low_memory

    def run(self) -> tuple[MemoryPlan, ir.Graph, dict[str, int]]:
        """Return the plan of a run, the graph, and the bytes of its values by name."""
        with RecordedSession(
            self._program,
            entrypoint=self._entrypoint,
            kernels=self._kernels,
            threads=1,
            low_memory=self._low_memory,
        ) as recorded:
            session = recorded.session
            given = example_inputs(session, self._inputs, self._sizes)
            session.run(**given)
            recording = recorded.recording()
            plan = plan_of(session, recording, given, low_memory=self._low_memory)
            pairs = (zip(n.outputs, n.bytes, strict=True) for n in recording.nodes)
            sizes = {name: size or 0 for node in pairs for name, size in node}
            return plan, session.model.graph, sizes
