"""Bodies of the pixel shuffle; numbers are in the matrix."""

from __future__ import annotations

import torch

from tests.bodies.body_ops import body_ops

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
