"""The declaration of a composite op: its name, inputs, attributes and semantics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from coreai_onnx.composites.checks import Attributes, Dims, Tensors
from coreai_onnx.model import inventory

DOMAIN = inventory.STANDARD_DOMAIN
USER_DOMAIN = inventory.USER_DOMAIN
MODULE_DOMAIN = inventory.MODULE_DOMAIN
ONNX_DOMAIN = "ai.coreai.onnx"
"""Domain of ONNX models that modules call."""

_D = TypeVar("_D")
_F = TypeVar("_F", bound=Callable[..., Any])
AttributeValue = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]
AttributeType = Literal["int", "float", "string", "ints", "floats", "strings"]

FLOAT_DTYPES = ("float32", "float16", "bfloat16", "float64")
"""The dtypes that every composite and every kernel must accept."""
DTYPE_WORDS = ("float64", "bfloat16", "float16")
"""Dtypes whose bodies may differ from the float32 body."""


@dataclass(frozen=True)
class Input:
    """One input of a composite.

    Attributes:
        name: The name in the function signature and in the reference.
        optional: Whether a call may omit it.
        dtype: ``"T"`` for the composite's floating type; ``"any"`` where several are allowed
            (an attention mask is bool or ``T``); ``"index"`` for int32 or int64; a concrete ONNX
            name (``"int64"``) otherwise.
        dims: The dims, by letters shared between the inputs: ``"B H T D"``. ``"K|H"`` is the dim
            ``K``, which may differ from ``H``. A ``*`` matches any number of dims, at the front
            or at the end. A leading ``~`` means broadcastable to those dims, aligned from the
            right. Dims at the front may be absent, and so may a ``1`` at the end.
        aliases: Names of the same argument, parameter or buffer in user classes
            (``hidden_states``, ``weight``).
    """

    name: str
    optional: bool = False
    dtype: str = "T"
    dims: str = "*"
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attribute:
    """One attribute of a composite.

    Attributes:
        name: The name on the node.
        type: ONNX attribute type.
        default: Value if the node does not have the attribute; None means it may be absent.
        aliases: Names under which user classes store the same quantity (``variance_epsilon``).
        structural: Whether its value selects a different body. A structural attribute is written
            into the body when the body is created; any other is read by attribute reference.
        switch: Whether a number selects a body by its sign only; the body for positive numbers
            reads the number from its calls.
    """

    name: str
    type: AttributeType
    default: AttributeValue | None = None
    aliases: tuple[str, ...] = ()
    structural: bool = False
    switch: bool = False


@dataclass(frozen=True)
class Composite:
    """The declaration of a composite op.

    Attributes:
        name: Op type in the domain ``ai.coreai``, or ``ai.coreai.user`` if a user declares it.
        inputs: Positional inputs in order.
        outputs: Output names in order.
        reference: The semantics: a function over torch tensors, called with the inputs by position
            (absent ones are None) and the attributes by keyword.
        formula: One line for the function's doc string and the documentation table.
        attributes: Attributes other than ``version``, which every composite has.
        variant_axes: Groups of variant words; a variant suffix takes at most one word of each
            group, joined with ``_`` in the order of the groups.
        version: Version of the semantics.
        kernel: Whether the kernel library implements it.
        dtypes: Dtypes that the floating type may be.
        output_dims: The dims of each output in the letters of the inputs: ``"B H T E"``; ``"*"``
            means those of the first input, ``"* N"`` those with another last dim, ``"?"`` that
            letters cannot express them.
        output_likes: For each output, the input whose dtype it has, if a call passes that input;
            it has the dtype of the first input otherwise.
        check: Returns a message if sizes or attributes of a call are invalid; empty otherwise.
        canonical: Returns the attributes of a call in the canonical form for the node.
        admissible: Maps random inputs, by name, to valid ones: indices in range, a decay that does
            not grow.
        unused: Returns those of the names of passed inputs that have no effect; the node omits
            them.
        candidates: Yields the attributes to compare a user's module with, in order, from those that
            the module has.
        unproven: Returns a message about behavior that inputs of these sizes do not exercise;
            empty if they exercise all of it.
        aten: The torch ops that are this composite (``"aten.silu.default"``): their parameters are
            its inputs, then its attributes, in order.
    """

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    reference: Callable[..., Any]
    formula: str
    attributes: tuple[Attribute, ...] = ()
    variant_axes: tuple[tuple[str, ...], ...] = ()
    version: int = 1
    kernel: bool = False
    dtypes: tuple[str, ...] = field(default=FLOAT_DTYPES)
    output_dims: tuple[str, ...] = ("*",)
    output_likes: tuple[str, ...] = ()
    check: Callable[[Dims, Attributes], str] = lambda _dims, _attributes: ""
    canonical: Callable[[Dims, Attributes], dict[str, Any]] = lambda _dims, attrs: dict(attrs)
    admissible: Callable[[Tensors], Tensors] = lambda inputs: inputs
    unused: Callable[[AbstractSet[str]], AbstractSet[str]] = lambda _names: frozenset()
    candidates: Callable[[Attributes], Iterator[Attributes]] = lambda attrs: iter([attrs])
    unproven: Callable[[Dims, Attributes], str] = lambda _dims, _attributes: ""
    aten: tuple[str, ...] = ()

    def attribute(self, name: str) -> Attribute:
        """Return the attribute called ``name``.

        Raises:
            KeyError: If the composite has no such attribute.
        """
        for attribute in self.attributes:
            if attribute.name == name:
                return attribute
        raise KeyError(f"composite {self.name} has no attribute {name!r}")

    def output_shapes(self, shapes: Sequence[Sequence[_D] | None]) -> list[tuple[_D, ...] | None]:
        """Return the shapes of the outputs, None where the declaration does not determine them.

        Args:
            shapes: The shapes of the inputs by position, None for absent and unknown ones.
        """
        letters: dict[str, _D] = {}
        for declared, shape in zip(self.inputs, shapes, strict=False):
            names = declared.dims.split()
            # A broadcast input may have size 1 in place of its letter's size.
            exact = not declared.dims.startswith("~") and "*" not in names
            if exact and shape is not None and len(names) == len(shape):
                for name, dim in zip(names, shape, strict=True):
                    letters.setdefault(name.partition("|")[0], dim)
        return [self._shape(pattern, letters, shapes[0]) for pattern in self.output_dims]

    def size_fault(self, dims: Dims) -> str:
        """Return a message if an input has too many dims, or if sizes with the same letter differ.

        Sizes that are None are unknown, and equal to any other; empty if all are equal.
        """
        letters: dict[str, tuple[str, int]] = {}
        for declared in self.inputs:
            name, pattern = declared.name, declared.dims.lstrip("~")
            if name not in dims or "*" in declared.dims:
                continue
            tokens = [t.partition("|")[0] for t in pattern.split()]
            if tokens[-1:] == ["1"] and len(dims[name]) < len(tokens):
                tokens.pop()
            if len(dims[name]) > len(tokens):
                return f"{name} has shape {_written(dims[name])}, more dims than {pattern}"
            # From the right, because dims at the front may be absent.
            for letter, size in zip(reversed(tokens), reversed(dims[name]), strict=False):
                broadcasts = declared.dims.startswith("~") and size == 1
                if size is None or letter == "1" or broadcasts:
                    continue
                other, first_size = letters.setdefault(letter, (name, size))
                if first_size != size:
                    return (
                        f"{name} has shape {_written(dims[name])}, {other} "
                        f"{_written(dims[other])}: dim {letter} of {pattern} is {size} here and "
                        f"{first_size} there"
                    )
        return ""

    @staticmethod
    def _shape(
        pattern: str, letters: Mapping[str, _D], first: Sequence[_D] | None
    ) -> tuple[_D, ...] | None:
        if pattern == "*":
            return None if first is None else tuple(first)
        names = pattern.removeprefix("*").split()
        if not all(n in letters for n in names):
            return None
        last = tuple(letters[n] for n in names)
        if not pattern.startswith("*"):
            return last
        return None if first is None else (*first[: -len(names)], *last)

    def variants(self) -> tuple[str, ...]:
        """Every variant suffix, ``""`` (the plain name) first.

        The last group is always the dtype, for models that use a composite with dtypes that need
        different bodies: float64 computes in float64, the narrow ones are cast to float32 and back.
        """
        groups = [("", *words) for words in (*self.variant_axes, DTYPE_WORDS)]
        suffixes = (
            "_".join(word for word in words if word) for words in itertools.product(*groups)
        )
        return tuple(dict.fromkeys(suffixes))

    def op_types(self) -> tuple[str, ...]:
        """Every op type that a call of this composite may have in a model."""
        return tuple(f"{self.name}.{v}" if v else self.name for v in self.variants())


def _written(dims: Sequence[int | None]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in dims) + "]"


_COMPUTED: dict[Any, str] = {}


def computes(composite: str) -> Callable[[_F], _F]:
    """Return a decorator for the ``forward`` of a module that computes a composite's reference.

    Such a module needs no check against the reference, and no body of its own.

    Args:
        composite: Name of the composite.
    """

    def register(forward: _F) -> _F:
        # By function: a subclass with a forward of its own must be compared with the reference.
        _COMPUTED[forward] = composite
        return forward

    return register


def computed_composite(forward: Any) -> str | None:
    """Return the name of the composite whose reference a ``forward`` computes, or None."""
    return _COMPUTED.get(forward)
