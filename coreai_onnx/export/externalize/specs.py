"""The user's specification of which modules become functions, and under which names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class ExternalizeSpec:
    """Specifies modules to externalize as functions.

    Attributes:
        target_class: Every module that is an instance of this class is externalized.
        composite_op_name: Name of the composite op; None for a plain function.
        composite_attrs: Attributes of the module that become attributes of the node.

    Raises:
        TypeError: If the class is not a module class, or the attributes are not a list of names.
        ValueError: If ``composite_attrs`` is given without ``composite_op_name``, or the name is
            not an identifier.
    """

    target_class: type
    composite_op_name: str | None = None
    composite_attrs: list[str] | None = None

    def __post_init__(self) -> None:
        """Check that attributes belong to a composite."""
        if not (isinstance(self.target_class, type)):
            raise TypeError(
                f"target_class must be a module class, not {self.target_class!r} "
                "(give the class itself, not its name or an instance)"
            )
        if not issubclass(self.target_class, torch.nn.Module):
            raise TypeError(
                f"target_class {self.target_class.__name__} is not a subclass of torch.nn.Module"
            )
        if self.composite_attrs is not None and self.composite_op_name is None:
            raise ValueError("composite_attrs requires composite_op_name")
        names: Any = self.composite_attrs or ()
        if isinstance(names, str) or not all(isinstance(n, str) for n in names):
            raise TypeError(f"composite_attrs must be a list of attribute names, not {names!r}")
        name = self.composite_op_name
        if name is not None and not (name.isascii() and name.isidentifier()):
            raise ValueError(
                f"composite_op_name {name!r} is not a name: use letters, digits and _ "
                "(a dot separates the variant of a composite)"
            )


def as_specs(targets: Iterable[ExternalizeSpec | type]) -> list[ExternalizeSpec]:
    """Return a spec for each target; a bare class is a plain function.

    Raises:
        TypeError: If a target is neither a spec nor a module class.
    """
    if isinstance(targets, str | ExternalizeSpec) or not isinstance(targets, Iterable):
        raise TypeError(f"externalize_modules must be a list of module classes, not {targets!r}")
    return [t if isinstance(t, ExternalizeSpec) else ExternalizeSpec(t) for t in targets]
