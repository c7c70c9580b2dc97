"""Makes ``ExportedProgram.run_decompositions`` fast enough to be called a thousand times.

Each call of torch 2.13 spends about 0.3 s on work that does not depend on the program: it walks
the dispatcher's list of composite ops once per namespace, twice, and overrides the Python kernels
of 500 ops with what the dispatcher does anyway. Here the walk is remembered for as long as no
operator is registered, and only the overrides that change something are made. The programs that
come out are the same: ``test_quick_decompositions.py`` compares them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._export import utils as export_utils
from torch.export import decomp_utils, exported_program

WALK = "_collect_all_valid_cia_ops"
OVERRIDE = "_override_composite_implicit_decomp"
DEFAULT = "_special_op_to_decompose_cia"
"""Name of the rule that stands for the dispatcher's own kernel of a composite op."""


_ORIGINALS: list[tuple[Any, str, Any]] = []


def install() -> None:
    """Replace the slow parts; do nothing where this torch has no such parts."""
    places = [(module, WALK) for module in (export_utils, decomp_utils, exported_program)]
    places.append((exported_program, OVERRIDE))
    if _ORIGINALS or not all(hasattr(module, name) for module, name in places):
        return
    _ORIGINALS.extend((module, name, getattr(module, name)) for module, name in places)
    walk = _remembered(export_utils._collect_all_valid_cia_ops)
    override = _slim(exported_program._override_composite_implicit_decomp)
    for module, name in places:
        setattr(module, name, walk if name == WALK else override)


def remove() -> None:
    """Put torch's own parts back."""
    while _ORIGINALS:
        setattr(*_ORIGINALS.pop())


def _remembered(walk: Callable[[], set[Any]]) -> Callable[[], set[Any]]:
    """Return the walk over composite ops, repeated only when an operator came or went."""
    known: dict[tuple[int, ...], set[Any]] = {}

    def remembered() -> set[Any]:
        if _registered() not in known:
            found = walk()  # also loads operators, which the count of namespaces sees
            known.clear()
            known[_registered()] = found
        return known[_registered()]

    return remembered


def _registered() -> tuple[int, ...]:
    """Count the composite ops of the dispatcher, and the namespaces that Python knows."""
    composite = "CompositeImplicitAutograd"
    found = torch._C._dispatch_get_registrations_for_dispatch_key(composite)
    return len(found), len(torch.ops._dir)


def _slim(
    override: Callable[[Mapping[Any, Any]], AbstractContextManager[None]],
) -> Callable[[Mapping[Any, Any]], AbstractContextManager[None]]:
    """Return the override of composite ops without those that keep the dispatcher's kernel."""

    def slim(rules: Mapping[Any, Any]) -> AbstractContextManager[None]:
        return override({op: rule for op, rule in rules.items() if not _is_default(rule)})

    return slim


def _is_default(rule: Any) -> bool:
    return isinstance(rule, functools.partial) and rule.func.__name__ == DEFAULT
