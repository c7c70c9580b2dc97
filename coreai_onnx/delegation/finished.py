"""The last step of the flow: ONNX models by method, to save and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from torch.export import ExportedProgram

from coreai_onnx.delegation.memory_planning import MemoryPlanningPass
from coreai_onnx.delegation.methods import FORWARD, Methods
from coreai_onnx.errors import SaveError
from coreai_onnx.memory.plan import MemoryPlan, memory_plan
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.outputs import Outputs

if TYPE_CHECKING:
    from coreai_onnx.passes import Target


@dataclass(frozen=True)
class FinishConfig:
    """Settings of `EdgeProgramManager.finish`.

    Attributes:
        passes: Passes to run first, as for `EdgeProgramManager.transform`.
        optimize: Whether to run the graph passes of the target.
        target: As for `OnnxProgram.optimize`.
        memory_planning_pass: What `FinishedProgram.memory_plan` includes.
        opset_version: As for `TorchConverter.to_onnx`.
        minimum_onnxruntime: As for `TorchConverter.to_onnx`.
    """

    passes: Sequence[Any] | Mapping[str, Sequence[Any]] = ()
    optimize: bool = True
    target: Target = "onnxruntime"
    memory_planning_pass: MemoryPlanningPass = field(default_factory=MemoryPlanningPass)
    opset_version: int | None = None
    minimum_onnxruntime: str | None = None


class FinishedProgram(Methods):
    """ONNX models by method, and the exported programs that they were lowered from.

    Attributes:
        onnx_program: The models; the methods are its entrypoints.
    """

    def __init__(
        self,
        onnx_program: OnnxProgram,
        programs: Mapping[str, ExportedProgram],
        planning: MemoryPlanningPass,
    ) -> None:
        """Hold the models, the programs, and what memory plans include."""
        self.onnx_program, self._planning = onnx_program, planning
        super().__init__(programs)

    @property
    def buffer(self) -> bytes:
        """The ``.onnx`` file of the only method, weights included.

        Raises:
            SaveError: If there are several methods, or the weights exceed protobuf's 2 GiB.
        """
        if len(self.methods) > 1:
            raise SaveError(
                f"an .onnx file has one method; the program has {', '.join(self.methods)}\n"
                "  use save(path) for a file per method, or onnx_program.save_bundle(folder)"
            )
        content: bytes = self.onnx_program.to_proto().SerializeToString()
        return content

    def write_to_file(self, file: BinaryIO) -> None:
        """Write the ``.onnx`` file of the only method to an open file.

        Raises:
            SaveError: As for `buffer`.
        """
        file.write(self.buffer)

    def save(
        self, path: str | PathLike[str], *, external_data: bool | None = None
    ) -> tuple[Path, ...]:
        """Write the methods as `OnnxProgram.save` does; `OnnxProgram.load` keeps their order.

        Raises:
            SaveError: If a file cannot be written; existing files are unchanged.
        """
        return self.onnx_program.save(path, external_data=external_data)

    def run(self, *args: object, method_name: str = FORWARD, **named: Any) -> Outputs:
        """Run a method once, as `OnnxProgram.run` does.

        Raises:
            StagingError: If there is no such method.
        """
        self.exported_program(method_name)
        return self.onnx_program.run(*args, entrypoint=method_name, **named)

    def memory_plan(
        self, method_name: str = FORWARD, *, sizes: Mapping[str, int] | None = None, **options: Any
    ) -> MemoryPlan:
        """Return the memory that a method takes; see `coreai_onnx.memory_plan`.

        Args:
            method_name: The method.
            sizes: Sizes of symbolic dims; 1 for the others.
            **options: ``kernels`` and ``low_memory`` of `coreai_onnx.memory_plan`.

        Raises:
            StagingError: If there is no such method.
        """
        self.exported_program(method_name)
        return memory_plan(
            self.onnx_program,
            sizes=sizes,
            entrypoint=method_name,
            with_inputs=self._planning.alloc_graph_input,
            with_outputs=self._planning.alloc_graph_output,
            **options,
        )
