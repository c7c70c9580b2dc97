"""Comparison of two multiples of a size without a guard, which torch supports from 2.13 on.

torch 2.12 adds a guard to compare ``8*s`` and ``16*s`` where ``expand(…).reshape(…)`` computes
strides, as grouped queries do. A named ``Dim`` then violates the guard, though it holds for every
size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import sympy
import torch

from coreai_onnx.export.compat.patches import exchanged, globals_of_forward, patched
from coreai_onnx.export.compat.torch_names import Max, Min, MinMaxBase

_MPT_BIAS = "build_mpt_alibi_tensor"
_TORCHS_OWN = "_collapse_known_multiplicative_terms"


@contextmanager
def multiples_compared() -> Iterator[None]:
    """While active, the minimum and the maximum of two multiples of a size are simplified.

    ```python
    with multiples_compared():  # with torch 2.12
        exported = torch.export.export(model, args, dynamic_shapes=dims)
    ```
    """
    # From torch 2.13 on, torch simplifies these itself.
    if hasattr(MinMaxBase, _TORCHS_OWN):
        yield
        return
    with patched(MinMaxBase, "__new__", _wrap):
        yield


@contextmanager
def offsets_of_biases_known(model: torch.nn.Module) -> Iterator[None]:
    """While active, MPT's ``max(0, difference of lengths)`` has no guard.

    MPT slices a bias of one row from ``max(0, 1 - length)`` on. torch cannot tell that this is 0,
    and finds the sizes after it inconsistent.
    """
    homes = {id(home): home for home in map(globals_of_forward, map(type, model.modules()))}
    with ExitStack() as exchanges:
        for home in homes.values():
            if _MPT_BIAS in home:
                exchanges.enter_context(exchanged(home, "max", _larger))
        yield


def _larger(first: Any, second: Any) -> Any:
    """Return the larger one, for the sizes of the example where one is symbolic."""
    numbers = [x.node.hint if isinstance(x, torch.SymInt) else x for x in (first, second)]
    return first if numbers[0] >= numbers[1] else second


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    def new(cls: type, *args: Any, **assumptions: Any) -> Any:
        simplified = _known(cls, args)
        return original(cls, *args, **assumptions) if simplified is None else simplified

    return new


def _known(cls: type, args: tuple[Any, ...]) -> sympy.Expr | None:
    """Return ``Min`` or ``Max`` of two multiples of one size; None for anything else."""
    if cls not in (Min, Max) or len(args) != 2:
        return None
    (a, x), (b, y) = (sympy.sympify(term).as_coeff_Mul() for term in args)
    # For a negative size, the larger factor gives the smaller product.
    if x != y or not x.is_nonnegative or x.is_number:
        return None
    chosen: sympy.Expr = (min(a, b) if cls is Min else max(a, b)) * x
    return chosen
