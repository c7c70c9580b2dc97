"""The memory planning pass of ExecuTorch's flow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryPlanningPass:
    """Which memory `FinishedProgram.memory_plan` includes; onnxruntime places the values itself.

    Attributes:
        alloc_graph_input: Whether the plan includes the inputs. If not, they are memory of the
            caller, as for every `Session.run`.
        alloc_graph_output: Whether the plan includes the outputs. If not, they are written to
            memory of the caller, as by `Session.run_into`.
    """

    alloc_graph_input: bool = True
    alloc_graph_output: bool = True
