"""Bodies of the rotation: ONNX's own op, and when it is spelled out; numbers are in the matrix."""

from __future__ import annotations

import pytest
import torch

from tests.bodies.body_ops import body_ops

X, TABLE = (2, 3, 5, 8), (5, 4)


@pytest.mark.parametrize("attributes", [{}, {"interleaved": 1}, {"dims": 4}], ids=str)
def test_onnxs_own_op(attributes: dict[str, int]) -> None:
    half = attributes.get("dims", 8) // 2
    ops = body_ops("rope", [X, (5, half), (5, half)], attributes)
    assert "RotaryEmbedding" in ops
    assert "RotaryEmbedding" in body_ops("rope", [X], attributes)


def test_where_it_is_spelled_out() -> None:
    for ops in (
        body_ops("rope", [X, TABLE, TABLE], opset=22),
        body_ops("rope", [X, TABLE, TABLE], dtype=torch.float64),
        body_ops("rope", [X, (3, 5, 4), (3, 5, 4)]),
    ):
        assert "RotaryEmbedding" not in ops


def test_what_is_not_needed_is_not_computed() -> None:
    ops = body_ops("rope", [X, TABLE, TABLE])
    assert not {"Cos", "Sin", "Range", "Pow"} & set(ops)
    assert "Pow" not in body_ops("rope", [X, None, None, None, (4,)], dtypes={4: torch.float32})
