"""Verification of graph passes: after each, every part of the model is compared with torch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path

import onnx_ir as ir

from coreai_onnx.debugging.blaming.blame import Blame, blame
from coreai_onnx.debugging.reference.references import calls_of_record
from coreai_onnx.debugging.reference.torch_side import InputSet
from coreai_onnx.export.record import ExportRecord


class PassVerifier:
    """Compares a model with torch after each pass; for ``program.optimize(verify=...)``.

    ```python
    record = ExportRecord.load("model.pt2")
    OnnxProgram.load("model.onnx").optimize(verify=PassVerifier(record))
    ```
    """

    def __init__(
        self,
        record: ExportRecord,
        inputs: InputSet | list[InputSet] | None = None,
        folder: str | PathLike[str] | None = None,
    ) -> None:
        """Keep what to compare with.

        Args:
            record: What the model was converted from.
            inputs: As for `compare`; None for the example inputs of the record.
            folder: Receives the reproduction of a wrong result; None makes a temporary folder.

        Raises:
            ComparisonError: If there are no inputs.
        """
        calls_of_record(record, inputs)  # raises before a pass has run
        self._record, self._inputs, self._folder = record, inputs, folder

    def check(self, model: ir.Model) -> Callable[[ir.Model], str]:
        """Return a function that describes what a pass broke, or returns an empty string.

        Args:
            model: The model before the passes. Values that are wrong in it are not attributed to
                them.
        """
        # Passes are not to blame for what was wrong before them.
        wrong_before = {v for one in self._blame(model).findings for v in one.values}

        def wrong(changed: ir.Model) -> str:
            result = self._blame(changed)
            findings = tuple(x for x in result.findings if not wrong_before.issuperset(x.values))
            if not findings:
                return ""
            # kernels_checked keeps the note on kernels out of the table: passes change no kernel.
            result = replace(result, findings=findings, unchecked=(), kernels_checked=True)
            folder = self._folder or tempfile.mkdtemp(prefix="coreai_onnx_wrong_pass_")
            places = result.reproduce(Path(folder))
            return "\n".join([str(result), *(f"reproduced in {place}" for place in places)])

        return wrong

    def _blame(self, model: ir.Model) -> Blame:
        return blame(model, self._record, self._inputs, kernels=False)
