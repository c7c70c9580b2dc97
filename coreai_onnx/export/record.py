"""The exported program that a model was converted from, and its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from coreai_onnx.errors import LoadError, SaveError, failures_as
from coreai_onnx.export.externalize.module_call import ModuleCall
from coreai_onnx.model.files.new_files import all_or_nothing, file_fault


@dataclass(frozen=True)
class ExportRecord:
    """What a model was converted from: the names of its FX nodes are in the model's metadata.

    Attributes:
        program: The exported program, without in-place ops, with its example inputs.
        calls: The externalized modules that it calls, which exist in this process only.
    """

    program: ExportedProgram
    calls: tuple[ModuleCall, ...] = ()

    @property
    def example(self) -> tuple[tuple[Any, ...], Mapping[str, Any]] | None:
        """The positional and keyword arguments of the export; None if they were not kept."""
        inputs = self.program.example_inputs
        return None if inputs is None else (tuple(inputs[0]), dict(inputs[1]))

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the record as a file of ``torch.export.save``; a failure leaves an old file.

        Args:
            path: The file, usually ending in ``.pt2``.

        Raises:
            SaveError: If it cannot be written, or the program calls externalized modules.
        """
        target = Path(path)
        if self.calls:
            raise SaveError(
                f"cannot write the record {target}: the program calls externalized modules, which "
                "a file cannot hold\n  blame it in this process, or convert the model without "
                "externalize_modules"
            )
        with failures_as(SaveError, f"cannot write the record {target}"), all_or_nothing() as files:
            torch.export.save(self.program, files.create(target))
        return target

    @classmethod
    def load(cls, path: str | PathLike[str]) -> ExportRecord:
        """Read a record.

        Raises:
            LoadError: If the file is missing, or was not written by ``torch.export.save``.
        """
        with failures_as(LoadError, f"{path}: is not a record"):
            if fault := file_fault(Path(path)):
                raise LoadError(f"{path}: {fault}")
            return cls(torch.export.load(Path(path)))
