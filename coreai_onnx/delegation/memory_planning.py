"""The memory planning pass of ExecuTorch's flow."""

from __future__ import annotations

from dataclasses import dataclass, field

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
        alloc_mutable_buffers: Whether the plan includes the states. If not, they are memory of the
            session. Their new values are outputs.
        alignment: What offsets are multiples of, in bytes.
        allow_lifetime_and_storage_overlap: Whether the algorithm may give the same memory to
            buffers that are used at once.
        share_mutable_buffers: Refused if true: each method has a plan of its own.

    Raises:
        StagingError: If the algorithm is not a function, the alignment is not positive, or a field
            is refused.
    """

    memory_planning_algo: Algorithm = greedy
    alloc_graph_input: bool = True
    alloc_graph_output: bool = True
    alignment: int = ALIGNMENT
    alloc_mutable_buffers: bool = field(default=True, kw_only=True)
    allow_lifetime_and_storage_overlap: bool = field(default=False, kw_only=True)
    share_mutable_buffers: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        if not callable(self.memory_planning_algo):
            raise StagingError(
                f"memory_planning_algo must be a function, got {self.memory_planning_algo!r:.60}\n"
                "  use coreai_onnx.runtime.memory.greedy, or a function of buffers and alignment"
            )
        if self.share_mutable_buffers:
            raise StagingError(
                "share_mutable_buffers has no counterpart: each method has a plan of its own\n"
                "  leave it out"
            )
        # bool is a subclass of int.
        if type(self.alignment) is not int or self.alignment < 1:
            raise StagingError(f"alignment must be a positive integer, got {self.alignment!r:.60}")
