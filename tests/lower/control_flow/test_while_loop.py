"""``while_loop`` against torch: no round, one round, many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim

from tests.lower.checking import check
from tests.lower.control_flow.test_cond import BATCH, OTHERS, Model, X, graphs_of


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_a_counter_tensor(rounds: int) -> None:
    def function(m: Model, x: torch.Tensor) -> Any:
        return while_loop(
            lambda i, y: i < rounds, lambda i, y: (i + 1, m.layer(y)), (torch.tensor(0), x)
        )

    check(Model(function), X, dynamic_shapes=BATCH, others=OTHERS)


def test_a_counter_number_up_to_a_symbolic_size() -> None:
    """The number is a scalar the loop carries; it is read as a number inside."""

    def function(x: torch.Tensor) -> Any:
        return while_loop(lambda i, y: i < y.shape[0], lambda i, y: (i + 1, y.sin() + i), (0, x))

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


def test_no_round_for_some_sizes() -> None:
    def function(x: torch.Tensor) -> Any:
        return while_loop(lambda i, y: i < y.shape[0] - 3, lambda i, y: (i + 2, y * 2 + i), (0, x))

    check(function, X, dynamic_shapes=BATCH, others=[*OTHERS, (torch.randn(9, 4),)])


def test_a_loop_in_a_loop_bounded_by_the_outer_number() -> None:
    def function(x: torch.Tensor) -> Any:
        def body(i: int, y: torch.Tensor) -> Any:
            inner = while_loop(lambda j, z: j < i, lambda j, z: (j + 1, z + j * 0.5), (0, y))
            return i + 1, inner[1]

        return while_loop(lambda i, y: i < x.shape[0], body, (0, x))

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


def test_a_condition_in_a_loop_in_a_condition() -> None:
    def function(m: Model, x: torch.Tensor) -> Any:
        def body(i: torch.Tensor, y: torch.Tensor) -> Any:
            return i + 1, torch.cond(i > 1, m.layer, lambda z: z * 2, (y,))

        def loop(y: torch.Tensor) -> Any:
            return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), y))[1]

        return torch.cond(x.sum() > 0, loop, lambda y: y.clone(), (x,))

    check(Model(function), X, dynamic_shapes=BATCH, others=OTHERS)


def test_a_predicate_that_depends_on_the_data() -> None:
    def function(x: torch.Tensor) -> Any:
        return while_loop(lambda y: y.abs().max() > 0.01, lambda y: (y * 0.5,), (x,))

    check(function, X, dynamic_shapes=BATCH, others=[*OTHERS, (torch.zeros(2, 4),)])


def test_sizes_found_in_the_condition_and_in_the_body() -> None:
    """The condition is lowered in two places: its own sizes must not meet."""

    def function(x: torch.Tensor) -> Any:
        return while_loop(
            lambda y: y[y > 0.1].shape[0] > 1,
            lambda y: (y - y[y > 0].sum() / 10 - 0.1,),
            (x,),
        )

    check(function, X, dynamic_shapes=BATCH, others=OTHERS)


def test_swapped_carries_and_dtypes() -> None:
    def function(x: torch.Tensor, k: torch.Tensor) -> Any:
        return while_loop(
            lambda a, b, n: n > 0,
            lambda a, b, n: (b.clone(), a.clone(), n - 1),
            (x, x + 1, k),
        )

    x = torch.randn(3).to(torch.float16)
    both = [(x, torch.tensor(n, dtype=torch.uint8)) for n in (3, 0, 2)]
    model = check(function, *both[0], others=both[1:])
    (body,) = graphs_of(model, "Loop")
    assert len({v.name for v in body.outputs}) == 4


def test_values_after_the_loop_depend_on_its_number() -> None:
    def function(x: torch.Tensor) -> Any:
        count, y = while_loop(lambda i, y: i < y.shape[0] * 2, lambda i, y: (i + 3, y + i), (0, x))
        return y * count, torch.full((2,), count)

    check(function, X, dynamic_shapes=({0: Dim("batch", min=2)},), others=OTHERS)
