"""Bodies of vector norms; numbers are in the matrix."""

from __future__ import annotations

import math

import pytest

from tests.bodies.body_ops import body_ops


@pytest.mark.parametrize(
    ("order", "op_type"),
    [(2.0, "ReduceL2"), (1.0, "ReduceL1"), (0.0, "ReduceSum"), (math.inf, "ReduceMax")],
)
def test_orders_with_a_reduction_of_their_own(order: float, op_type: str) -> None:
    ops = body_ops("linalg_vector_norm", [(2, 3)], {"ord": order})
    assert op_type in ops
    assert "Pow" not in ops


def test_any_other_order_is_read_from_the_call() -> None:
    three = body_ops("linalg_vector_norm", [(2, 3)], {"ord": 3.0})
    assert three == body_ops("linalg_vector_norm", [(2, 3)], {"ord": -0.5})
    assert three.count("Pow") == 2


def test_the_least_magnitude() -> None:
    assert "ReduceMin" in body_ops("linalg_vector_norm", [(2, 3)], {"ord": -math.inf})
