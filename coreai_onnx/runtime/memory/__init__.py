"""Memory of a run: how much, when, for which values, and how to use less."""

from coreai_onnx.model.files.saving import mapped_below
from coreai_onnx.runtime.memory.placement import PlannedBuffer, greedy, naive
from coreai_onnx.runtime.memory.plan import LiveValue, MemoryPlan, memory_plan
from coreai_onnx.runtime.memory.reordering import reorder

__all__ = [
    "LiveValue",
    "MemoryPlan",
    "PlannedBuffer",
    "greedy",
    "mapped_below",
    "memory_plan",
    "naive",
    "reorder",
]
