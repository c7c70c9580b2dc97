"""Kernels of the user's own, compiled and checked before they may be used."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import onnx_ir as ir

from coreai_onnx.composites import Composite, domain_of
from coreai_onnx.composites.declaration import USER_DOMAIN
from coreai_onnx.composites.user_composites import check_declaration
from coreai_onnx.debugging.difference import Tolerances
from coreai_onnx.delegation.user_kernels.checking import check_kernel
from coreai_onnx.delegation.user_kernels.compiling import Source, compiled
from coreai_onnx.delegation.user_kernels.examples import Shapes
from coreai_onnx.errors import DeclarationError, KernelError
from coreai_onnx.model.files.new_files import all_or_nothing
from coreai_onnx.model.inventory import op_name


@dataclass(frozen=True)
class Kernel:
    """A kernel that agreed with the reference of its composite; create one with `kernel`.

    Attributes:
        composite: The declaration.
        library: The custom op library. Any onnxruntime loads it, in every language.
        checked: Number of calls on which it agreed with the reference.
    """

    composite: Composite
    library: Path
    checked: int

    @property
    def domain(self) -> str:
        """The domain of the op."""
        return USER_DOMAIN

    def mismatch(self, model: ir.Model) -> str:
        """Return why a function of a model is not what the kernel computes, or an empty string.

        A function that was made with another declaration, or with none, may have other inputs.
        """
        declared = [declared.name for declared in self.composite.inputs]
        attributes = {*(a.name for a in self.composite.attributes), "version"}
        for (domain, name, _), function in model.functions.items():
            if domain != self.domain or name not in self.composite.op_types():
                continue
            inputs = [str(value.name) for value in function.inputs]
            same = inputs == declared[: len(inputs)] and set(function.attributes) == attributes
            # Equal names and inputs do not make equal computations: the formula of the declaration
            # tells.
            if not same or function.graph.doc_string != self.composite.formula:
                return (
                    f"the function {op_name(domain, name)} of the model was not made with the "
                    f"declaration of the kernel\n  it is {name}({', '.join(inputs)}), the kernel "
                    f"computes {self.composite.name}({', '.join(declared)})\n  convert the model "
                    "with ExternalizeSpec(…, composite=…), or run it without this kernel"
                )
        return ""

    def save(self, path: str | PathLike[str]) -> None:
        """Copy the library to a file, completely or not at all.

        Raises:
            KernelError: If the file cannot be written.
        """
        try:
            with all_or_nothing() as files, self.library.open("rb") as source:
                shutil.copyfileobj(source, files.create(Path(path)))
        except OSError as error:
            raise KernelError(f"cannot write {path}: {error.strerror or error}") from error

    def __repr__(self) -> str:
        """Return the composite, the library and the number of calls that were compared."""
        name = op_name(self.domain, self.composite.name)
        return f"Kernel({name}, {self.library}, checked on {self.checked} calls)"


def kernel(
    composite: Composite,
    sources: Source | Sequence[Source],
    *,
    attributes: Sequence[Mapping[str, Any]] = (),
    shapes: Sequence[Shapes] = (),
    tolerances: Tolerances = None,
    flags: Sequence[str] = (),
    timeout: float = 120.0,
) -> Kernel:
    """Compile a kernel of a composite, and check it against the composite's reference.

    The check covers every declared dtype, sizes from none to many elements, fixed and dynamic,
    special values, optional inputs present and absent, and other values of the attributes; each
    call is also made between guard pages, repeatedly, and by several threads. It runs in a process
    of its own. A compiled library is cached (``COREAI_ONNX_CACHE``); the check is made every time.

    Args:
        composite: The declaration.
        sources: C++ files, or their text. They include ``kit/kernel.h``, and one uses
            ``COREAI_KERNEL``.
        attributes: Attributes to check besides the defaults; by default floats, and integers that
            are 0 or 1, are varied.
        shapes: Shapes of inputs, by name, to check besides the generated ones.
        tolerances: (relative, absolute), or a mapping from dtype to them; None for the defaults of
            ``torch.testing.assert_close``.
        flags: Further options of the compiler, ``("-march=native",)``.
        timeout: Seconds that the check may take.

    Returns:
        The kernel, for ``session(custom_ops=[…])``.

    Raises:
        DeclarationError: If the declaration is invalid, or is that of a standard composite.
        KernelError: If the sources do not compile, or a result differs from the reference: the
            message names the dtype, the shapes and the first wrong element.
        ToolchainError: If there is no compiler, or onnxruntime's headers are missing.
    """
    check_declaration(composite)
    # The library of this package has the kernels of standard composites already.
    if domain_of(composite) != USER_DOMAIN:
        raise DeclarationError(
            f"{composite.name} is a standard composite; declare one of your own with its reference"
        )
    several = [sources] if isinstance(sources, str | PathLike) else list(sources)
    if not several:
        raise KernelError(f"there are no sources of the kernel of {composite.name}")
    # Checked each time although it is cached: the reference may have changed since.
    library = compiled(composite, several, flags)
    checked = check_kernel(
        composite,
        library,
        attributes=attributes,
        shapes=shapes,
        tolerances=tolerances,
        timeout=timeout,
    )
    return Kernel(composite, library, checked)
