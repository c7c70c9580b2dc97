"""Computations with dynamic sizes, without the guards that torch adds to them.

* Comparison of two multiples of a size, which torch supports from 2.13 on. torch 2.12 adds a guard
  to compare ``8*s`` and ``16*s`` where ``expand(…).reshape(…)`` computes strides, as grouped
  queries do. A named ``Dim`` then violates the guard, though it holds for every size.
* ``torch.as_tensor([height, width])`` and ``torch.linspace(0.5, height - 0.5, height)``, as in
  deformable attention, which fix the sizes: torch.export supports ``torch.tensor`` and
  ``torch.arange`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import sympy
import torch

from coreai_onnx.export.compat.patches import exchanged, globals_of_forward, patched
from coreai_onnx.export.compat.torch_names import Max, Min, MinMaxBase, linspace, pytree

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
def sizes_as_tensors() -> Iterator[None]:
    """While active, ``torch.as_tensor`` and ``torch.linspace`` of dynamic sizes do not fix them."""
    with (
        patched(torch, "as_tensor", _wrap_as_tensor),
        patched(torch, "linspace", lambda original: _if_dynamic(linspace, original)),
    ):
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


def _wrap_as_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    def tensor(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
        # Looked up at each call: the export redirects torch.tensor.
        return torch.tensor(data, dtype=dtype, device=device)

    return _if_dynamic(tensor, original)


def _if_dynamic(function: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls the first function if an argument is a dynamic size, or the second one."""

    def chosen(*args: Any, **kwargs: Any) -> Any:
        dynamic = any(isinstance(x, torch.SymInt) for x in pytree.tree_leaves((args, kwargs)))
        return (function if dynamic else original)(*args, **kwargs)

    return chosen


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
