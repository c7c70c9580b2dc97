"""The memory planning pass of ExecuTorch's flow."""

from __future__ import annotations

from dataclasses import dataclass

from coreai_onnx.errors import StagingError
from coreai_onnx.runtime.memory.placement import ALIGNMENT, Algorithm, greedy


@dataclass(frozen=True)
class MemoryPlanningPass:
    """Which memory `FinishedProgram.memory_plan` includes, and how it places buffers.

    onnxruntime places the values itself. The plan is for runtimes that allocate ahead of time.

    Attributes:
        memory_planning_algo: As ``algorithm`` of `coreai_onnx.memory_plan`.
        alloc_graph_input: Whether the plan includes the inputs. If not, they are memory of the
            caller, as for every `Session.run`.
        alloc_graph_output: Whether the plan includes the outputs. If not, they are written to
            memory of the caller, as by `Session.run_into`.
        alignment: What offsets are multiples of, in bytes.

    Raises:
        StagingError: If the algorithm is not a function, or the alignment is not positive.
    """

    memory_planning_algo: Algorithm = greedy
    alloc_graph_input: bool = True
    alloc_graph_output: bool = True
    alignment: int = ALIGNMENT

    def __post_init__(self) -> None:
        """Check the fields."""
        if not callable(self.memory_planning_algo):
            raise StagingError(
                f"memory_planning_algo is {self.memory_planning_algo!r:.60}, not a function\n"
                "  use coreai_onnx.runtime.memory.greedy, or a function of buffers and alignment"
            )
        # bool is a subclass of int.
        if type(self.alignment) is not int or self.alignment < 1:
            raise StagingError(f"the alignment is {self.alignment!r:.60}, not a positive number")
