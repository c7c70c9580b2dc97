"""Traces a composite's reference over symbolic shapes, so that one body serves every call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from coreai_onnx.composites.declaration import Composite
from coreai_onnx.errors import ConversionError
from coreai_onnx.export.compat.torch_names import (
    ConstantSource,
    DimDynamic,
    FakeTensorMode,
    ShapeEnv,
    make_fx,
)

# A reference that compares two sizes sees these hints, so sizes with different letters must differ.
_HINTS = (5, 12, 11, 16, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
# H is a multiple of K and V, as heads are of their groups; a cache (S) is longer than a call (T).
_KNOWN_HINTS = {"B": 5, "H": 12, "K": 6, "V": 6, "T": 7, "S": 11, "D": 16, "E": 18, "F": 8}


@dataclass(frozen=True)
class Example:
    """The properties of one input on which a body depends.

    Attributes:
        dtype: Dtype for the trace.
        dims: A letter for each symbolic dim, or 1 for a dim that is broadcast.
    """

    dtype: torch.dtype
    dims: tuple[str | int, ...]


@dataclass(frozen=True)
class TracedReference:
    """A traced reference.

    Attributes:
        graph_module: The trace; its placeholders are ``inputs``, then ``scalars``.
        inputs: Names of the composite's inputs that are present.
        scalars: Names of the attributes that are read at run time.
    """

    graph_module: fx.GraphModule
    inputs: tuple[str, ...]
    scalars: tuple[str, ...]


def trace_reference(
    composite: Composite,
    examples: Sequence[Example | None],
    structural: Mapping[str, Any],
    scalars: Sequence[str],
) -> TracedReference:
    """Trace the reference of a composite.

    Args:
        composite: The declaration.
        examples: One per input, None for an absent one.
        structural: Attributes whose values are constants in the body.
        scalars: Float attributes that the body reads from the node, traced as 0-d tensors.

    Raises:
        ConversionError: If the reference specialized one of the letters to a number.
    """
    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env)
    # Cached, because a letter must be the same symbol in all inputs.
    size_of = functools.cache(_symbol_maker(shape_env))
    with mode:
        tensors = [
            torch.empty([d if isinstance(d, int) else size_of(d) for d in e.dims], dtype=e.dtype)
            for e in examples
            if e is not None
        ]
        numbers = [torch.empty((), dtype=torch.float32) for _ in scalars]

    def call(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        inputs = [None if e is None else next(rest) for e in examples]
        attributes = dict(structural) | {name: next(rest) for name in scalars}
        return composite.reference(*inputs, **attributes)

    with torch.no_grad(), mode:  # tensors created inside (arange) are fake too
        graph_module = make_fx(call)(*tensors, *numbers)
    # Such a body would hold for calls with these sizes only.
    fixed = [s for s, to in shape_env.replacements.items() if to.is_number]
    if fixed:
        raise ConversionError(f"the reference of {composite.name} fixes the sizes {fixed}")
    present = tuple(
        i.name for i, e in zip(composite.inputs, examples, strict=False) if e is not None
    )
    return TracedReference(graph_module, present, tuple(scalars))


def _symbol_maker(shape_env: ShapeEnv) -> Callable[[str], torch.SymInt]:
    """Return a function from a letter to its symbolic size; distinct hints keep sizes distinct."""
    unused = iter(_HINTS)

    def make(letter: str) -> torch.SymInt:
        hint = _KNOWN_HINTS.get(letter) or next(unused)
        source = ConstantSource(f"size_{letter}")
        symbol = shape_env.create_symbol(
            hint, source=source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
        )
        node = shape_env.create_symintnode(symbol, hint=hint, source=source)
        assert isinstance(node, torch.SymInt)
        return node

    return make
