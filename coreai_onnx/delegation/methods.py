"""Exported programs by the names of their methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from coreai_onnx.errors import StagingError, failures_as
from coreai_onnx.export.compat.torch_names import pytree

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

    def by_method(self, setting: Any) -> dict[str, Any]:
        """Return what is set for each method: the values of a mapping, or one value for all.

        Raises:
            StagingError: If the mapping has a method that does not exist.
        """
        if not isinstance(setting, Mapping):
            return dict.fromkeys(self.methods, setting)
        for name in setting:
            self.exported_program(name)
        return dict(setting)

    def __repr__(self) -> str:
        """Return a text with the methods."""
        return f"{type(self).__name__}({', '.join(self.methods)})"


class _ConstantMethod(torch.nn.Module):
    """Returns the tensors and numbers that it was made from."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        leaves, self._tree = pytree.tree_flatten(value)
        for number, leaf in enumerate(leaves):
            # Numbers of Python have 64 bits; torch would round floats to 32.
            dtype = torch.float64 if isinstance(leaf, float) else None
            self.register_buffer(f"constant_{number}", torch.as_tensor(leaf, dtype=dtype))

    def forward(self) -> Any:
        return pytree.tree_unflatten(list(self.buffers()), self._tree)


def constant_program(name: Any, value: Any) -> ExportedProgram:
    """Return a program without inputs that returns a value.

    Args:
        name: The method, for messages.
        value: A tensor, a number, or a nesting of them in lists, tuples and dicts.

    Raises:
        StagingError: If the value is something else.
    """
    leaves = pytree.tree_leaves(value)
    unfit = [x for x in leaves if not isinstance(x, torch.Tensor | bool | int | float)]
    if unfit or not leaves:
        raise StagingError(
            f"the constant method {name!r} must return tensors or numbers, got "
            f"{(unfit or [value])[0]!r:.60}\n"
            "  write text to finish().onnx_program.model.metadata_props"
        )
    with failures_as(StagingError, f"the constant method {name!r} cannot be exported"):
        return torch.export.export(_ConstantMethod(value), ())
