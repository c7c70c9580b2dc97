"""Bodies of pooling and of the pixel shuffle."""

from __future__ import annotations

import torch

from tests.bodies.body_ops import body_ops

X = [(1, 2, 6, 6)]
WINDOW = {"kernel_size": (2, 2), "stride": (2, 2), "padding": (1, 1, 1, 1)}


def test_one_op_reads_everything_from_the_call() -> None:
    assert body_ops("avg_pool_2d", X, WINDOW) == ["AveragePool"]
    assert body_ops("avg_pool_2d", X, {**WINDOW, "ceil_mode": 1}) == ["AveragePool"]


def test_a_divisor_takes_sums() -> None:
    ops = body_ops("avg_pool_2d", X, {**WINDOW, "divisor_override": 3})
    assert "Pad" in ops
    assert ops[-1] == "Div"


def test_float64_is_gathered() -> None:
    ops = body_ops("avg_pool_2d", X, WINDOW, dtype=torch.float64)
    assert "AveragePool" not in ops
    assert ops.count("ReduceSum") == 2


TWICE = {"upscale_factor": 2}


def test_four_axes_are_one_op() -> None:
    assert body_ops("pixel_shuffle", [(1, 8, 2, 3)], TWICE) == ["DepthToSpace"]
    assert body_ops("pixel_shuffle", [(1, 8, 2, 3)], TWICE, dtype=torch.float16) == [
        "Cast",
        "DepthToSpace",
        "Cast",
    ]


def test_one_body_for_all_other_ranks() -> None:
    three = body_ops("pixel_shuffle", [(8, 2, 3)], TWICE)
    assert three == body_ops("pixel_shuffle", [(2, 2, 8, 2, 3)], TWICE)
    assert three.count("Reshape") == 2
