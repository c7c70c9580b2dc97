"""The last step of the flow: ONNX models by method, to save and run."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from torch.export import ExportedProgram

from coreai_onnx.delegation.configs import FinishConfig
from coreai_onnx.delegation.methods import FORWARD, Methods
from coreai_onnx.errors import SaveError
from coreai_onnx.model.files.saving import EXTERNAL_TENSOR_BYTES
from coreai_onnx.model.inventory import weights
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.memory.plan import MemoryPlan, memory_plan
from coreai_onnx.runtime.tensors.outputs import Outputs


class FinishedProgram(Methods):
    """ONNX models by method, and the exported programs that they were lowered from.

    Attributes:
        onnx_program: The models; the methods are its entrypoints.
    """

    def __init__(
        self,
        onnx_program: OnnxProgram,
        programs: Mapping[str, ExportedProgram],
        config: FinishConfig | None = None,
    ) -> None:
        """Hold the models, the programs, and the settings of files and memory plans."""
        self.onnx_program, self._config = onnx_program, config or FinishConfig()
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
        # protobuf serializes 2 GiB at most, which `to_proto` checks.
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

        Args:
            path: The file; several methods are several files beside it.
            external_data: As for `OnnxProgram.save`. None uses a data file for several methods,
                which share it, and for ``external_constants``.

        Raises:
            SaveError: If a file cannot be written; existing files are unchanged.
        """
        if external_data is None:
            # Several files with the same weights inside would multiply their size; small ones do
            # not matter.
            stored = max(weights(model)[1] for model in self.onnx_program.models.values())
            shared = len(self.methods) > 1 and stored >= EXTERNAL_TENSOR_BYTES
            external_data = True if shared or self._config.external_constants else None
        return self.onnx_program.save(path, external_data=external_data)

    def run(self, *args: object, method_name: str = FORWARD, **named: Any) -> Outputs:
        """Run a method once, as `OnnxProgram.run` does.

        Raises:
            StagingError: If there is no such method.
        """
        # It raises the error for a method that does not exist.
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
        planning = self._config.planning(method_name)
        return memory_plan(
            self.onnx_program,
            sizes=sizes,
            entrypoint=method_name,
            with_inputs=planning.alloc_graph_input,
            with_outputs=planning.alloc_graph_output,
            with_states=planning.alloc_mutable_buffers,
            algorithm=planning.memory_planning_algo,
            overlap=planning.allow_lifetime_and_storage_overlap,
            alignment=planning.alignment,
            **options,
        )
