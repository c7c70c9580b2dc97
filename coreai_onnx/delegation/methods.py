"""Exported programs by the names of their methods."""

from __future__ import annotations

from collections.abc import Mapping

from torch.export import ExportedProgram

from coreai_onnx.errors import StagingError

FORWARD = "forward"
"""The method of a program that is given without a name."""


class Methods:
    """Exported programs by method.

    Args:
        programs: Method to program.
    """

    def __init__(self, programs: Mapping[str, ExportedProgram]) -> None:
        """Hold the programs."""
        self._programs = dict(programs)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order in which they were given."""
        return tuple(self._programs)

    def exported_program(self, method_name: str = FORWARD) -> ExportedProgram:
        """Return the program of a method.

        Raises:
            StagingError: If there is no such method; the message lists the methods.
        """
        if method_name not in self._programs:
            raise StagingError(f"no method {method_name!r}; there are {', '.join(self.methods)}")
        return self._programs[method_name]

    def __repr__(self) -> str:
        """Return a text with the methods."""
        return f"{type(self).__name__}({', '.join(self.methods)})"
