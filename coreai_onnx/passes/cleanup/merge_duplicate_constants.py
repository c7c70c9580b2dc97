"""Merges constants of equal dtype, shape and bytes."""
# ruff: noqa: ARG001 - every pass has the signature of a pass

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from coreai_onnx.passes.engine import graphs as gs
from coreai_onnx.passes.engine.constants import digest, fingerprint, is_lazy
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.graphs import context_of
from coreai_onnx.passes.engine.why import Why


def merge_duplicate_constants(graph: gs.Graph, why: Why) -> int:
    """Two equal initializers or constants → the first of them, with its name.

    a = 1.5, b = 1.5, Add(x, a), Mul(y, b)     becomes     a = 1.5, Add(x, a), Mul(y, a)
    """
    edit, count = Edit(graph), 0
    candidates = [c for c in context_of(graph).constants if c.outputs and _is_plain(c)]
    for group in _equal_groups(candidates):
        first, *others = group
        for other in others:
            if edit.is_output(other):
                continue
            edit.replace(other, first)
            count += 1
    if count:
        constants = context_of(graph).constants
        constants[:] = [c for c in constants if c.outputs or edit.is_output(c)]
    edit.finish()
    return count


def _is_plain(constant: gs.Constant) -> bool:
    # Comparing lazy constants would compute them: weights that are rewritten as the file is
    # written.
    return np.dtype(constant.dtype).kind != "O" and not is_lazy(constant)


def _equal_groups(constants: Iterable[gs.Constant]) -> Iterable[list[gs.Constant]]:
    """Group by dtype and shape, then by a sample of the bytes, then by all bytes."""
    groups = [list(constants)]
    # The cheapest key comes first: nearly all weights differ in shape or in a few bytes, so that
    # hardly any is read from its file as a whole.
    for key in (_form, fingerprint, digest):
        groups = [part for group in groups for part in _split(group, key) if len(part) > 1]
    return groups


def _form(constant: gs.Constant) -> tuple[object, ...]:
    return np.dtype(constant.dtype).name, tuple(constant.shape)


def _split(
    group: list[gs.Constant], key: Callable[[gs.Constant], object]
) -> Iterable[list[gs.Constant]]:
    parts: dict[object, list[gs.Constant]] = {}
    for constant in group:
        parts.setdefault(key(constant), []).append(constant)
    return parts.values()
