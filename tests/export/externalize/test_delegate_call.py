"""The op of a delegated part runs the part."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.export import Dim, export

from coreai_onnx.errors import DelegationError, InputError
from coreai_onnx.export.externalize.delegate_call import (
    DELEGATE,
    Delegate,
    delegate_of,
    is_number,
)
from tests.support.tolerances import assert_close


class Scaled(torch.nn.Module):
    def forward(self, x, n):
        return x * n, x


def delegate() -> Delegate:
    exported = export(Scaled(), (torch.randn(2), 5), dynamic_shapes=({0: Dim.DYNAMIC}, Dim.DYNAMIC))
    return Delegate("tests.call", exported, b"")


def test_the_op_runs_the_part_on_tensors_and_numbers() -> None:
    part, x = delegate(), torch.randn(4)
    assert [is_number(node) for node in part.placeholders] == [False, True]
    scaled, same = DELEGATE([x], [3], part.tag)
    assert_close(scaled, x * 3)
    assert_close(same, x)
    assert same is not x, "an op may not return its argument"


def test_delegates_are_found_by_their_tags_while_they_exist() -> None:
    first, second = delegate(), delegate()
    tag = first.tag
    assert delegate_of(tag) is first
    assert second.tag != tag
    del first
    gc.collect()
    with pytest.raises(DelegationError, match=f"the delegated part {tag} no longer exists"):
        delegate_of(tag)


def part_for(module: torch.nn.Module, *args, dynamic_shapes=None) -> Delegate:
    return Delegate("tests.call", export(module, args, dynamic_shapes=dynamic_shapes), b"")


class Sum(torch.nn.Module):
    def forward(self, x, y):
        return (x.sum() + y.sum(),)


@pytest.mark.parametrize(
    ("dynamic_shapes", "fitting", "others"),
    [
        (None, [(2, 4)], [(5, 4), (2, 5)]),
        (({0: Dim("n")}, {0: Dim("m")}), [(2, 4), (1, 7)], []),
        (({0: Dim("n", min=2, max=8)}, {0: Dim("m")}), [(8, 4), (2, 9)], [(9, 4)]),
        (({0: Dim("n", min=3)}, None), [(3, 4)], [(2, 4), (3, 5)]),
        (({0: 1 * Dim("n")}, {0: 2 * Dim("n")}), [(2, 4), (3, 6)], [(3, 4)]),
        (({0: Dim("n")}, {0: 2 * Dim("n")}), [(2, 4), (3, 6)], [(3, 4), (3, 7)]),
    ],
)
def test_other_sizes_than_the_bytes_are_for_are_an_error(dynamic_shapes, fitting, others) -> None:
    sizes = (3, 6) if dynamic_shapes and dynamic_shapes[1] else (3, 4)
    sizes = (2, 4) if dynamic_shapes is None else sizes
    part = part_for(Sum(), *map(torch.ones, sizes), dynamic_shapes=dynamic_shapes)
    for n, m in fitting:
        (total,) = DELEGATE([torch.ones(n), torch.ones(m)], [], part.tag)
        assert_close(total, torch.tensor(n + m).float())
    for n, m in others:
        with pytest.raises(InputError, match=r"was processed for [xy]: float32\["):
            DELEGATE([torch.ones(n), torch.ones(m)], [], part.tag)


def test_other_dtypes_ranks_and_numbers_are_an_error() -> None:
    part = part_for(Sum(), torch.ones(2), torch.ones(4))
    for x in (torch.ones(2).double(), torch.ones(2, 1)):
        with pytest.raises(InputError, match=r"for x: float32\[2\], not float(64|32)\[2"):
            DELEGATE([x, torch.ones(4)], [], part.tag)
    fixed = part_for(Scaled(), torch.randn(2), 5)
    assert_close(DELEGATE([torch.ones(2)], [5], fixed.tag)[0], torch.full((2,), 5.0))
    with pytest.raises(InputError, match="for n: 5, not 3"):
        DELEGATE([torch.ones(2)], [3], fixed.tag)
