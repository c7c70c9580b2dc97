"""The steps of ``cond``, ``while_loop``, ``scan`` and ``map``: which graph runs on which operands.

torch runs each of them as one operator. These functions run its graphs one by one, so that the
operators inside can be observed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[Any, Sequence[Any], int | None], Any]
"""Runs a graph on operands, in a step of a loop or None outside of loops."""


def run_cond(call: Call, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """Run ``cond``: the branch that is taken."""
    return call(true_fn if bool(pred) else false_fn, operands, None)


def run_while_loop(call: Call, cond_fn: Any, body_fn: Any, carried: Any, additional: Any) -> Any:
    """Run ``while_loop``: the body as long as the condition holds; each iteration is a step."""
    carried, step = tuple(carried), 0
    while bool(call(cond_fn, [*carried, *additional], step)):
        carried = tuple(call(body_fn, [*carried, *additional], step))
        step += 1
    return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in carried)


def run_scan(call: Call, combine_fn: Any, init: Any, xs: Any, additional: Any = ()) -> Any:
    """Run ``scan``: the function on each slice; returns the carries and the stacked outputs."""
    carried: list[Any] = list(init)
    slices: list[list[Any]] = []
    for step, inputs in enumerate(zip(*xs, strict=True)):
        results = list(call(combine_fn, [*carried, *inputs, *additional], step))
        carried = results[: len(init)]
        slices.append(results[len(init) :])
    return [*carried, *(torch.stack(column) for column in zip(*slices, strict=True))]


def run_map(call: Call, function: Any, xs: Any, additional: Any = ()) -> Any:
    """Run ``map_impl``: a scan that carries nothing."""
    return run_scan(call, function, (), xs, additional)


RUNS: dict[str, Callable[..., Any]] = {
    "cond": run_cond,
    "while_loop": run_while_loop,
    "scan": run_scan,
    "map_impl": run_map,
}
"""Function by the name of torch's operator: it takes a `Call` and the operator's arguments."""
