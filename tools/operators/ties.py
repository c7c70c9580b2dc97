"""Indices of equal elements: torch documents no order for them, so any of them is right."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from tools.operators.entries import Call

_PLACE_OF_DIM = {torch.sort: 1, torch.argsort: 1, torch.topk: 2, torch.kthvalue: 2}
"""Operators that tell where elements were, and which argument is the axis."""


def same_but_for_ties(call: Call, actual: list[Any], expected: list[Any]) -> bool:
    """Whether results are those of torch, apart from indices that point at equal elements.

    Args:
        call: The call; only those of operators that order elements can differ so.
        actual: Its results, the indices last.
        expected: Those of torch.
    """
    args, kwargs = pytree.tree_unflatten(call.leaves, call.spec)
    if call.operator not in _PLACE_OF_DIM or kwargs.get("stable"):
        return False
    shapes = [[(x.shape, x.dtype) for x in results] for results in (actual, expected)]
    if shapes[0] != shapes[1] or not all(map(_same, actual[:-1], expected[:-1])):
        return False
    place = _PLACE_OF_DIM[call.operator]
    dim = kwargs.get("dim", args[place] if len(args) > place else -1)
    found, wanted = (_with_axis(r[-1], dim, call.tensors[0].dim()) for r in (actual, expected))
    distinct = found.sort(dim).values.diff(dim=dim).ne(0).all()
    elements = call.tensors[0]
    return bool(distinct) and _same(elements.gather(dim, found), elements.gather(dim, wanted))


def _with_axis(indices: torch.Tensor, dim: int, rank: int) -> torch.Tensor:
    """Return indices with the axis that they are along, which kthvalue drops."""
    return indices if indices.dim() == rank else indices.unsqueeze(dim)


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool(torch.all((x == y) | ((x != x) & (y != y))))  # noqa: PLR0124 - nan is not itself
