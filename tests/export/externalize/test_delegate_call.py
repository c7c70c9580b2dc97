"""The op of a delegated part runs the part."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.export import Dim, export

from coreai_onnx.errors import DelegationError
from coreai_onnx.export.externalize.delegate_call import (
    DELEGATE,
    Delegate,
    delegate_of,
    is_number,
)
from tests.tolerances import assert_close


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
