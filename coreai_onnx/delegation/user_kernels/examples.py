"""Example calls of a composite, generated from its declaration, with the edge cases among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from coreai_onnx.composites import Composite, Input

Shapes = Mapping[str, Sequence[int]]
"""The shapes of inputs, by name."""
_SEED = 20260101
# Small values show missing epsilons, large ones exponentials that overflow in float16.
_MAGNITUDES = (1.0, 1e-3, 8.0)
_SPECIAL_SHARE = 0.04
"""Share of special values: sums over 33 elements have none, one, or several of them."""

Values = Literal["usual", "special", "wide"]
"""Which floats inputs have: of one magnitude; some of them infinite, NaN or subnormal; or
with magnitudes from 1e-4 to 1e4."""


@dataclass(frozen=True)
class ExampleCall:
    """One call of a composite.

    Attributes:
        label: What is special about it.
        inputs: The inputs that it passes, by name.
        attributes: Its attributes.
        fixed: Whether the model declares these sizes; otherwise all sizes are dynamic.
        values: Which floats the inputs have.
    """

    label: str
    inputs: Mapping[str, torch.Tensor]
    attributes: Mapping[str, Any]
    fixed: bool = False
    values: Values = "usual"


@dataclass(frozen=True)
class _SizePlan:
    """Sizes for the dims of a declaration.

    Attributes:
        label: What is special about them.
        lead: The dims of ``*``.
        letters: Sizes of the letters in order of their appearance; the last one repeats. Empty for
            sizes that give the largest tensor `_MANY` elements.
        broadcast: Whether inputs that may be broadcast are.
        index: Dtype of inputs that are indices.
        values: Which floats the inputs have.
    """

    label: str
    lead: tuple[int, ...]
    letters: tuple[int, ...]
    broadcast: bool = False
    index: torch.dtype = torch.int64
    values: Values = "usual"


_SIZES = (
    _SizePlan("different sizes", (2, 3), (5, 7, 4, 6, 3)),
    _SizePlan("equal sizes", (4,), (4,), broadcast=True, index=torch.int32),
    _SizePlan("one element", (1,), (1,)),
    _SizePlan("no leading dims", (), (3, 5, 2)),
    _SizePlan("no elements", (0,), (0, 5, 4, 6, 3)),
    _SizePlan("no rows", (2, 0), (5, 7, 4, 6, 3), broadcast=True),
    _SizePlan("odd sizes", (3,), (17, 33, 9, 5, 3), index=torch.int32),
    _SizePlan("multiples of vectors", (5,), (64, 16, 8, 16, 4)),
    _SizePlan("tails of vectors", (7, 5), (131, 65, 4, 2, 3)),
    _SizePlan("many elements", (3,), ()),
)
_EXTREMES = (
    _SizePlan("special values", (9, 33), (17, 33, 9, 5, 3), values="special"),
    _SizePlan("values from 1e-4 to 1e4", (9, 33), (17, 33, 9, 5, 3), values="wide"),
)
_MANY = 1 << 17
"""Elements of the largest tensor: kernels were seen that fail above 100,000."""
_PROBES = ("different sizes", "equal sizes", "odd sizes")
"""Sizes that are tried with each set of inputs, and each value of an attribute."""


def example_calls(
    composite: Composite,
    dtype: torch.dtype,
    attributes: Sequence[Mapping[str, Any]] = (),
    shapes: Sequence[Shapes] = (),
) -> Iterator[ExampleCall]:
    """Yield calls of a composite; some may be calls that its check or reference rejects.

    Sizes are combined with the presence of optional inputs, and with other values of attributes.

    Args:
        composite: The declaration.
        dtype: The composite's dtype.
        attributes: Attributes to try instead of values near the defaults.
        shapes: Shapes to try besides the generated ones.
    """
    everything, *fewer = _presence(composite)
    usual, *others = _attribute_values(composite, attributes)
    planned = [*_generated_shapes(composite), *((_SIZES[0], one) for one in shapes)]
    # Each call has a seed of its own, so that a call stays the same when others are added.
    count = itertools.count()
    for sizes, shape in planned:
        yield _call(composite, dtype, (sizes, shape), everything, usual, next(count))
        if sizes is _SIZES[0]:  # a kernel must not keep what it computed for these sizes
            again = replace(sizes, label="other values of the same sizes")
            yield _call(composite, dtype, (again, shape), everything, usual, next(count))
    first = planned[0]
    # Kernels may prepare for sizes that the model declares.
    yield _call(composite, dtype, first, everything, usual, next(count), fixed=True)
    # After the usual values, whose errors are easier to understand.
    for extreme in _EXTREMES:
        probe = (extreme, _shapes(composite, extreme))
        yield _call(composite, dtype, probe, everything, usual, next(count))
    # All sizes for all combinations would take too long; optional inputs show mistakes at few
    # sizes.
    probes = [g for g in planned if g[0].label in _PROBES]
    for names, probe in itertools.product(fewer, probes):
        yield _call(composite, dtype, probe, names, usual, next(count))
    for values, probe in itertools.product(others, probes):
        yield _call(composite, dtype, probe, everything, values, next(count))


def _call(
    composite: Composite,
    dtype: torch.dtype,
    planned: tuple[_SizePlan, Shapes],
    names: frozenset[str],
    attributes: Mapping[str, Any],
    number: int,
    *,
    fixed: bool = False,
) -> ExampleCall:
    sizes, shapes = planned
    generator = torch.Generator().manual_seed(_SEED + number)
    magnitude = _MAGNITUDES[number % len(_MAGNITUDES)]
    inputs = {
        declared.name: _random(
            shapes[declared.name],
            _dtype(declared, dtype, sizes.index),
            generator,
            magnitude,
            sizes.values,
        )
        for declared in composite.inputs
        if declared.name in shapes and declared.name in names
    }
    # Random values may be outside of what an input allows, such as indices beyond an axis.
    admissible = dict(composite.admissible(inputs))
    return ExampleCall(sizes.label, admissible, attributes, fixed, sizes.values)


# ---------------------------------------------------------------------- shapes
def _generated_shapes(composite: Composite) -> list[tuple[_SizePlan, Shapes]]:
    """Return shapes of all inputs for each of `_SIZES`; equal ones only once."""
    planned: list[tuple[_SizePlan, Shapes]] = []
    for sizes in _SIZES:
        shapes = _shapes(composite, sizes)
        if all(shapes != other for _, other in planned):
            planned.append((sizes, shapes))
    return planned


def _shapes(composite: Composite, sizes: _SizePlan) -> Shapes:
    """Return shapes of all inputs."""
    if not sizes.letters:
        sizes = _many(composite, sizes)
    letters = _letters(composite, sizes)
    return {i.name: _shape(i, sizes, letters) for i in composite.inputs}


def _many(composite: Composite, sizes: _SizePlan) -> _SizePlan:
    """Return sizes that give the largest input or output `_MANY` elements.

    All letters have one size: the reference may need memory for a product of any of them.
    """
    dims = [declared.dims for declared in composite.inputs]
    tensors = [x.lstrip("~").split() for x in (*dims, *composite.output_dims)]
    most = max(sum(token[0].isalpha() for token in dims) for dims in tensors)
    if not most:
        return replace(sizes, lead=(*sizes.lead, -(-_MANY // math.prod(sizes.lead))), letters=(1,))
    lead = math.prod(sizes.lead) if any("*" in dims for dims in tensors) else 1
    size = math.ceil((_MANY / lead) ** (1 / most))
    # Even, because some composites halve an axis.
    return replace(sizes, letters=(size + size % 2,))


def _letters(composite: Composite, sizes: _SizePlan) -> dict[str, int]:
    letters: dict[str, int] = {}
    for declared in composite.inputs:
        for token in declared.dims.lstrip("~").split():
            letter = token.partition("|")[0]
            if letter not in ("*", "1"):
                place = min(len(letters), len(sizes.letters) - 1)
                letters.setdefault(letter, sizes.letters[place])
    return letters


def _shape(declared: Input, sizes: _SizePlan, letters: Mapping[str, int]) -> tuple[int, ...]:
    shape: list[int] = []
    for token in declared.dims.lstrip("~").split():
        if token == "*":  # noqa: S105 - a dim, not a password
            shape += sizes.lead
        else:
            shape.append(1 if token == "1" else letters[token.partition("|")[0]])  # noqa: S105
    if declared.dims.startswith("~") and sizes.broadcast:
        # More than half of the axes: both leading and inner ones are broadcast.
        shape[: len(shape) // 2 + 1] = [1] * (len(shape) // 2 + 1)
    return tuple(shape)


# ---------------------------------------------------------------------- inputs and attributes
def _presence(composite: Composite) -> list[frozenset[str]]:
    """Return sets of inputs to pass: all, only the required ones, and each optional one alone."""
    required = frozenset(i.name for i in composite.inputs if not i.optional)
    optional = [i.name for i in composite.inputs if i.optional]
    sets = [required | frozenset(optional), required, *(required | {name} for name in optional)]
    return list(dict.fromkeys(sets))


def _attribute_values(
    composite: Composite, chosen: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return attributes to try: the defaults, then the given ones or values near the defaults."""
    usual = {a.name: a.default for a in composite.attributes if a.default is not None}
    if chosen:
        tried = [usual | dict(one) for one in chosen]
        complete = all(a.default is not None for a in composite.attributes)
        return [usual, *tried] if complete else tried
    others = []
    for name, value in usual.items():
        if isinstance(value, float):
            # This keeps a positive number positive, and one between 0 and 1 in this range.
            others.append(usual | {name: value * 0.5 + 0.25})
        # Switches; other integers, such as numbers of groups, must fit the sizes.
        elif isinstance(value, int) and value in (0, 1):
            others.append(usual | {name: 1 - value})
    return [usual, *others]


def _dtype(declared: Input, dtype: torch.dtype, index: torch.dtype) -> torch.dtype:
    if declared.dtype in ("T", "any"):
        return dtype
    return index if declared.dtype == "index" else getattr(torch, declared.dtype)


def _random(
    shape: Sequence[int],
    dtype: torch.dtype,
    generator: torch.Generator,
    magnitude: float,
    values: Values,
) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(tuple(shape), generator=generator) > 0.4
    if not dtype.is_floating_point:
        # Small enough to be indices into axes of most sizes.
        return torch.randint(0, 5, tuple(shape), generator=generator).to(dtype)
    normal = torch.randn(tuple(shape), generator=generator)
    if values == "wide":
        exponents = torch.rand(tuple(shape), generator=generator) * 8 - 4
        # Evenly over the exponents: a normal distribution has hardly any small magnitudes.
        return (normal.sign() * 10**exponents).to(dtype)
    tensor = (normal * magnitude).to(dtype)
    if values == "special" and tensor.numel():
        _insert_special(tensor.view(-1), generator)
    return tensor


def _insert_special(flat: torch.Tensor, generator: torch.Generator) -> None:
    """Write each special value to several random places."""
    inf, subnormal = float("inf"), torch.finfo(flat.dtype).tiny / 4
    special = torch.tensor([float("nan"), inf, -inf, subnormal, 0.0, -0.0], dtype=flat.dtype)
    # Each value at least once, in small tensors too.
    count = max(len(special), int(len(flat) * _SPECIAL_SHARE))
    places = torch.randperm(len(flat), generator=generator)[:count]
    flat[places] = special.repeat(-(-count // len(special)))[: len(places)]
