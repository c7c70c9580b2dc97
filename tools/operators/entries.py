"""The operators that are measured: torch's OpInfo database, and the calls its samples make."""

from __future__ import annotations

import re
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

MAX_NUMEL = 200_000
"""Larger samples are left out: they show nothing that small ones do not."""

_NO_VALUE = """
bernoulli cauchy exponential geometric log_normal multinomial rand rand_like randint randint_like
randn randn_like randperm uniform normal(\\..*)? pca_lowrank svd_lowrank
empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_
nn\\.functional\\.(dropout|dropout2d|dropout3d|alpha_dropout|feature_alpha_dropout\\..*|rrelu)
nn\\.functional\\.(fractional_max_pool2d|fractional_max_pool3d) torch\\.ops\\.aten\\._?dropout.*
to_sparse.* sparse\\..*
"""
_UNMEASURED = re.compile("|".join(_NO_VALUE.split()))
"""Entries whose value torch itself does not fix: random, uninitialized or sparse."""


@dataclass(frozen=True)
class Call:
    """One call of an operator.

    Attributes:
        operator: The function.
        leaves: Flat arguments; a ``Slot`` stands for each tensor.
        spec: How the arguments nest.
        tensors: The tensors, in order.
    """

    operator: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: Any
    tensors: tuple[torch.Tensor, ...]

    def given(self, tensors: tuple[torch.Tensor, ...]) -> Call:
        """Return the call with other tensors."""
        return replace(self, tensors=tensors)

    def module(self) -> torch.nn.Module:
        """Return a module of the tensors alone; all else is fixed in it."""
        return _Module(self)

    def copies(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors for one run: an operator may write into them."""
        return tuple(t.clone() if t.layout == torch.strided else t for t in self.tensors)

    def value(self, seed: int = 0) -> list[Any]:
        """Return what torch gives: flat tensors and numbers, None left out."""
        torch.manual_seed(seed)
        with torch.no_grad():
            found = self.module()(*self.copies())
        return [x for x in pytree.tree_leaves(found) if x is not None and not isinstance(x, str)]


@dataclass(frozen=True)
class Slot:
    """The place of a tensor among the arguments."""

    index: int


class _Module(torch.nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call
        self.eval()

    def forward(self, *tensors: torch.Tensor) -> Any:
        call = self.call
        filled = [tensors[x.index] if isinstance(x, Slot) else x for x in call.leaves]
        args, kwargs = pytree.tree_unflatten(filled, call.spec)
        return call.operator(*args, **kwargs)


def entries() -> dict[str, Any]:
    """Return torch's OpInfos by name (``linalg.norm.subgradients_at_zero``)."""
    _stand_in_for_expecttest()
    from torch.testing._internal import common_methods_invocations as database

    # they seed the random operators, which would then look as if they had one value
    database.wrapper_set_seed = lambda operator, *args, **kwargs: operator(*args, **kwargs)
    found: dict[str, Any] = {}
    for info in database.op_db:
        variant = f".{info.variant_test_name}" if info.variant_test_name else ""
        found.setdefault(info.name + variant, info)
    return found


def has_a_value(name: str) -> bool:
    """Whether torch fixes what an operator returns."""
    return _UNMEASURED.fullmatch(name) is None


def calls(info: Any, dtype: torch.dtype, limit: int) -> list[Call]:
    """Return the calls of the first samples of an OpInfo."""
    torch.manual_seed(0)
    found: list[Call] = []
    # every sample is taken: a generator that is dropped half way warns when it is collected
    for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
        if len(found) < limit:
            call = _call(info.op, sample)
            if sum(t.numel() for t in call.tensors) <= MAX_NUMEL:
                found.append(call)
    return found


def _call(operator: Callable[..., Any], sample: Any) -> Call:
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    tensors = [x.detach() for x in leaves if isinstance(x, torch.Tensor)]
    slots: Iterator[Slot] = (Slot(i) for i in range(len(tensors)))
    fixed = tuple(next(slots) if isinstance(x, torch.Tensor) else x for x in leaves)
    return Call(operator, fixed, spec, tuple(tensors))


def _stand_in_for_expecttest() -> None:
    """torch's test database imports a package that it needs only for its own tests."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        module = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase
        sys.modules["expecttest"] = module
