"""Programs that run one after the other, as the stages of one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import onnx_ir as ir

from coreai_onnx.errors import InputError
from coreai_onnx.model.interface import interface
from coreai_onnx.runtime.memory.stages import StageCost, cost_table
from coreai_onnx.runtime.sessions.runnable import Runnable
from coreai_onnx.runtime.tensors.outputs import Array

Program = TypeVar("Program", bound=Runnable)


@dataclass(frozen=True)
class Pipeline(Generic[Program]):
    """The stages of a model, of `OnnxProgram.split`; prints as a table of what each takes.

    ```python
    pipeline = program.split(2)
    for i, stage in enumerate(pipeline.stages):
        stage.save(f"stage_{i}.onnx")
    ```

    A stage reads inputs of the model and results of earlier stages, by their names.

    Attributes:
        stages: The programs, in order.
        costs: What each takes.
        whole: The model.
    """

    stages: tuple[Program, ...]
    costs: tuple[StageCost, ...]
    whole: ir.Model

    def run(self, *, kernels: bool | None = None, **inputs: object) -> dict[str, Array]:
        """Run the stages in this process; each keeps its states for the next call.

        Args:
            kernels: Whether to use native kernels, as for `coreai_onnx.session`.
            **inputs: All inputs of the model by name; states by name replace the carried ones.

        Returns:
            The outputs of the model, by name.

        Raises:
            InputError: If an input is missing, unknown or wrong.
            SessionError: If a stage cannot be run.
        """
        described = interface(self.whole)
        states = {x.name for x in described.states}
        if inputs.keys() - states != {x.name for x in described.inputs}:
            needed = ", ".join(str(x) for x in described.inputs)
            raise InputError(f"inputs must be {needed}, got {', '.join(inputs) or 'none'}")
        values: dict[str, Any] = dict(inputs)
        for stage in self.stages:
            session = stage.session(kernels=kernels)
            names = [*(x.name for x in session.inputs), *(states & set(session.states))]
            values |= session.run(**{name: values[name] for name in names if name in values})
        return {x.name: values[x.name] for x in described.outputs}

    def __str__(self) -> str:
        """Return the costs."""
        return cost_table(self.costs)
