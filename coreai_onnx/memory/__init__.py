"""Memory of a run: how much, when, for which values, and how to use less."""

from coreai_onnx.memory.plan import LiveValue, MemoryPlan, memory_plan

__all__ = ["LiveValue", "MemoryPlan", "memory_plan"]
