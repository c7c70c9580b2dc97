"""``scan``, ``map`` and ``associative_scan`` against torch."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.associative_scan import associative_scan, associative_scan_op
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch.export import Dim

from tests.lower.checking import check, op_types
from tests.lower.control_flow.test_cond import BATCH, OTHERS, Model, X

ONE_ROW = (torch.randn(1, 4),)


def test_scan_carries_and_stacks() -> None:
    def function(m: Model, x: torch.Tensor) -> Any:
        return scan(lambda c, y: (c + m.layer(y), c * y), torch.zeros(4), x, dim=0)

    model = check(Model(function), X, dynamic_shapes=BATCH, others=OTHERS)
    assert op_types(model)[-1] == "Scan"


def test_scan_backwards_over_another_axis() -> None:
    def function(m: Model, x: torch.Tensor) -> Any:
        return scan(lambda c, y: (c + m.layer(y), c * y), torch.zeros(4), x.T, dim=1, reverse=True)

    check(Model(function), X, dynamic_shapes=BATCH, others=OTHERS)


def test_scan_reads_outer_values_and_sizes() -> None:
    def function(x: torch.Tensor) -> Any:
        def step(carry: torch.Tensor, y: torch.Tensor) -> Any:
            return carry * 0.5 + y * x.shape[0] + x.sum(), (carry > 0).clone()

        return scan(step, x[0] * 0, x, dim=0)

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


def test_scan_over_a_tree_with_two_carries() -> None:
    def function(x: torch.Tensor) -> Any:
        def step(carry: Any, xs: Any) -> Any:
            total, count = carry
            return (total + xs["a"] @ xs["b"], count + 1), {"t": total.clone(), "n": count.clone()}

        start = (torch.zeros(4, 4), torch.zeros((), dtype=torch.int64))
        trees = {"a": x[:, :, None], "b": x[:, None, :] * 2}
        return scan(step, start, trees, dim=0)

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


def test_map_with_closure() -> None:
    def function(m: Model, x: torch.Tensor) -> Any:
        return map_(lambda y, b: (m.layer(y) + b, y.argmax()), x, m.shift)

    check(Model(function), X, dynamic_shapes=BATCH, others=OTHERS)


def test_map_in_map() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return map_(lambda row: map_(lambda e: e * e + 1, row) + row.sum(), x)

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


def test_map_with_a_condition_inside() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return map_(lambda r: torch.cond(r.sum() > 0, lambda y: y.sin(), lambda y: y * 2, (r,)), x)

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


def test_associative_scan_as_exported() -> None:
    """torch spells the generic mode out, and binds it to one size."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return associative_scan(lambda a, b: a * b, x, dim=0, combine_mode="generic")

    check(function, torch.randn(7, 4))


def test_associative_scan_op() -> None:
    def function(x: torch.Tensor) -> Any:
        def combine(a: Any, b: Any, c: Any, d: Any) -> Any:
            return [a * c, b * c + d]

        return associative_scan_op(combine, [x, x + 1], [])

    check(function, X, dynamic_shapes=({0: Dim.AUTO},), others=[*OTHERS, ONE_ROW])


def test_associative_scan_op_with_booleans() -> None:
    def function(x: torch.Tensor) -> Any:
        return associative_scan_op(lambda a, b: [torch.logical_or(a, b)], [x > 0.5], [])

    check(function, X, dynamic_shapes=({0: Dim.AUTO},), others=[*OTHERS, ONE_ROW])
