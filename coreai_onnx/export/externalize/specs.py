"""The user's specification of which modules become functions, and under which names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from coreai_onnx.composites import COMPOSITES, Composite, domain_of
from coreai_onnx.composites.user_composites import check_declaration


@dataclass
class ExternalizeSpec:
    """Specifies modules to externalize as functions.

    Attributes:
        target_class: Every module that is an instance of this class is externalized; a module class
            or a base of one (a mixin).
        composite_op_name: Name of the composite op; None for a plain function.
        composite_attrs: Attributes of the module that become attributes of the node.
        composite: The declaration of a composite of the user's own. The modules are then checked
            against its reference, and a kernel of `coreai_onnx.kernel` may run them. Its inputs
            and attributes are arguments, weights and attributes of the module, by name.

    Raises:
        DeclarationError: If ``composite`` is not a valid declaration.
        TypeError: If the class is not a module class, or the attributes are not a list of names.
        ValueError: If ``composite_attrs`` is given without ``composite_op_name``, or the name is
            not an identifier.
    """

    target_class: type
    composite_op_name: str | None = None
    composite_attrs: list[str] | None = None
    composite: Composite | None = None

    def __post_init__(self) -> None:
        """Check that attributes belong to a composite."""
        self._name_declared()
        if not (isinstance(self.target_class, type)):
            raise TypeError(
                f"target_class must be a module class, not {self.target_class!r} "
                "(give the class itself, not its name or an instance)"
            )
        if not (issubclass(self.target_class, torch.nn.Module) or _is_mixin(self.target_class)):
            raise TypeError(
                f"target_class {self.target_class.__name__} is not a subclass of torch.nn.Module, "
                "nor a base of one"
            )
        if self.composite_attrs is not None and self.composite_op_name is None:
            raise ValueError("composite_attrs requires composite_op_name")
        names: Any = self.composite_attrs or ()
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise TypeError(f"composite_attrs must be a list of attribute names, not {names!r}")
        name = self.composite_op_name
        if name is not None and not isinstance(name, str):
            raise TypeError(f"composite_op_name must be a name, not {name!r}")
        # Names of operators and functions are C identifiers in ONNX.
        if name is not None and not (name.isascii() and name.isidentifier()):
            raise ValueError(
                f"composite_op_name {name!r} is not a name: use letters, digits and _ "
                "(a dot separates the variant of a composite)"
            )

    def _name_declared(self) -> None:
        """Take the name of the declaration."""
        if self.composite is None:
            return
        check_declaration(self.composite)
        domain_of(self.composite)
        if self.composite_op_name not in (None, self.composite.name) or self.composite_attrs:
            raise ValueError("composite has the name and the attributes: give nothing else")
        self.composite_op_name = self.composite.name

    @property
    def declaration(self) -> Composite | None:
        """The declaration of the composite, of the user or of this package; None without one."""
        return self.composite or COMPOSITES.get(self.composite_op_name or "")


def _is_mixin(base: type) -> bool:
    """Whether a module class has a base class among its own."""
    # Called on type, since a metaclass has the method unbound.
    subclasses: list[type] = list(type.__subclasses__(base)) if base is not object else []
    return any(issubclass(each, torch.nn.Module) or _is_mixin(each) for each in subclasses)


def as_specs(targets: Iterable[ExternalizeSpec | type]) -> list[ExternalizeSpec]:
    """Return a spec for each target; a bare class is a plain function.

    Raises:
        TypeError: If a target is neither a spec nor a module class.
        ValueError: If specs of one composite have different declarations.
    """
    if isinstance(targets, str | ExternalizeSpec) or not isinstance(targets, Iterable):
        raise TypeError(f"externalize_modules must be a list of module classes, not {targets!r}")
    specs = [t if isinstance(t, ExternalizeSpec) else ExternalizeSpec(t) for t in targets]
    declared = {spec.composite_op_name: spec.composite for spec in specs if spec.composite}
    for spec in specs:
        name = spec.composite_op_name
        if name in declared and spec.composite is not declared[name]:
            raise ValueError(
                f"the composite {name} is declared for some of the modules only, or twice; "
                f"give ExternalizeSpec({spec.target_class.__name__}) the same composite"
            )
    return specs
