"""The check of a model after each pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import onnx_ir as ir

from coreai_onnx.errors import ComparisonError


@runtime_checkable
class Verifier(Protocol):
    """Verifies the results of passes."""

    def check(self, model: ir.Model) -> Callable[[ir.Model], str]:
        """Return a function that returns what a pass made wrong in a model; empty for nothing.

        Args:
            model: The model before the passes; what is wrong in it is not attributed to them.
        """


def check_of(
    verify: object, model: ir.Model, make: Callable[[Any], Verifier] | None
) -> Callable[[ir.Model], str] | None:
    """Return the check of a model after each pass; None without one.

    Args:
        verify: A verifier; inputs; True for the example inputs of the export; None for no check.
        model: The model before the passes.
        make: Makes the verifier of the model's own record from inputs; None without a record.

    Raises:
        ComparisonError: If inputs are given, but there is no record.
    """
    if verify is None or verify is False:
        return None
    if isinstance(verify, Verifier):
        return verify.check(model)
    if make is None:
        raise ComparisonError(
            "there is no record of the conversion to verify the passes with\n"
            "  give verify=coreai_onnx.debugging.PassVerifier(ExportRecord.load(path))"
        )
    return make(None if verify is True else verify).check(model)
