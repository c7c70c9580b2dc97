"""The order of nodes that takes the least memory, as measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from coreai_onnx.runtime.memory.ordering import apply_order, smaller_first
from coreai_onnx.runtime.memory.plan import MemoryPlan, example_inputs, planned_run
from coreai_onnx.runtime.sessions.entrypoints import HasModels
from coreai_onnx.runtime.sessions.session import Session


def reorder(
    program: HasModels,
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
    return reordered(
        program,
        lambda session: example_inputs(session, inputs, sizes or {}),
        entrypoint=entrypoint,
        kernels=kernels,
        low_memory=low_memory,
    )


def reordered(
    program: HasModels,
    choose: Callable[[Session], Mapping[str, object]],
    *,
    entrypoint: str | None = None,
    kernels: bool | None = None,
    low_memory: bool = False,
) -> tuple[MemoryPlan, MemoryPlan]:
    """Reorder the nodes of a model as `reorder` does, with inputs chosen as for `planned_run`."""
    run = partial(
        planned_run,
        program,
        choose,
        entrypoint=entrypoint,
        kernels=kernels,
        low_memory=low_memory,
    )
    before = run()
    graph = before.model.graph
    present = list(graph)
    better = smaller_first(graph, before.sizes)
    try:
        apply_order(graph, better)
        after = run()
    except BaseException:
        apply_order(graph, present)
        raise
    if after.plan.peak < before.plan.peak:
        return before.plan, after.plan
    apply_order(graph, present)
    return before.plan, before.plan
