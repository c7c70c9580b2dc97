"""Blocks of experts: how rows are interleaved, and what of a block is known."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from coreai_onnx.passes.contrib.moe import ExpertBlock, in_turns


def tensor(name: str, *shape: int | str, dtype: type = np.float32) -> gs.Variable:
    return gs.Variable(name, np.dtype(dtype), list(shape))


def block(*, rows: int | str = 2) -> ExpertBlock:
    """Return a block of 2 experts per token, 6 lanes and 3 hidden values."""
    indices = tensor("e", "n", 2, dtype=np.int64)
    ends = [tensor("x", "n", 1, 1, 6), tensor("a", "n", 2, 1, 6)]
    inner = [tensor("h", "n", rows, 1, 3), tensor("d", "n", 2, 1, 6)]
    up, down = (
        gs.Node("gather_mm", inputs=[x, tensor("w"), tensor("none"), indices], outputs=[y])
        for x, y in (ends, inner)
    )
    total = gs.Node("ReduceSum", inputs=[tensor("z", "n", 2, 6)], outputs=[tensor("y", "n", 6)])
    return ExpertBlock(total, up, down, tensor("v", "n", 2, 1))


@pytest.mark.parametrize("inner", [(), (5,), (4, 3)])
def test_gate_and_up_rows_take_turns(inner: tuple[int, ...]) -> None:
    values = np.arange(2 * 6 * np.prod(inner, dtype=int)).reshape(2, 6, *inner)
    turned = in_turns(values)
    assert np.array_equal(turned[:, 0::2], values[:, :3])
    assert np.array_equal(turned[:, 1::2], values[:, 3:])


def test_a_block_knows_its_sizes() -> None:
    found = block()
    assert (found.count, found.chosen) == ("n", 2)
    assert found.is_float32()
    assert not found.is_float32(found.experts)


def test_rows_that_are_no_pairs_of_token_and_expert_are_seen() -> None:
    assert block().is_laid_out(6, 3)
    assert not block().is_laid_out(6, 4)
    assert not block(rows="k").is_laid_out(6, 3)
