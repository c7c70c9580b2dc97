"""The steps of control flow, against torch's own operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan, scan_op
from torch.fx.experimental.proxy_tensor import make_fx

from coreai_onnx.debugging.reference.control_flow import RUNS, body_calls
from tests.support.tolerances import assert_close


def traced(f: Any, *args: Any) -> Any:
    return make_fx(f)(*args)


ROW, ROWS = torch.arange(3.0), torch.arange(12.0).reshape(4, 3) / 7
CASES = {
    "cond": (
        torch.ops.higher_order.cond,
        (
            torch.tensor(False),
            traced(lambda x: (x + 1,), ROW),
            traced(lambda x: (x * 3,), ROW),
            (ROW,),
        ),
        [None],
    ),
    "while_loop": (
        torch.ops.higher_order.while_loop,
        (
            traced(lambda i, _x, _y: i < 3, torch.tensor(0), ROW, ROW),
            traced(lambda i, x, y: (i + 1, x * 2 + y), torch.tensor(0), ROW, ROW),
            (torch.tensor(0), ROW),
            (ROW,),
        ),
        [0, 0, 1, 1, 2, 2, 3],
    ),
    "scan": (
        scan_op,
        (traced(lambda c, x, y: (c + x, c * y), ROW, ROW, ROW), [ROW], [ROWS], (ROW,)),
        [0, 1, 2, 3],
    ),
    "map_impl": (map_impl, (traced(lambda x, y: (x * y,), ROW, ROW), [ROWS], [ROW]), [0, 1, 2, 3]),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_torch(name: str) -> None:
    op, args, wanted = CASES[name]
    steps = []

    def call(graph: Any, operands: Sequence[Any], step: int | None) -> Any:
        steps.append(step)
        return graph(*operands)

    assert str(op) == name
    found, expected = RUNS[name](call, *args), op(*args)
    assert steps == wanted
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def test_calls_of_graphs_with_their_steps() -> None:
    class Nested(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def step(c: torch.Tensor, row: torch.Tensor) -> Any:
                inner = torch.cond(row.sum() > 3, lambda a: a * 2, lambda a: a + 1, (row,))
                return c + inner, c * 1

            return scan(step, x[0] * 0, x, dim=0)[0]

    program = torch.export.export(Nested(), (ROWS * 7,))
    calls = body_calls(program, (ROWS * 7,))
    bodies = [call for call in calls if "." not in call.path]
    assert [call.steps for call in bodies] == [(0,), (1,), (2,), (3,)]
    for call, row in zip(bodies, ROWS * 7, strict=True):
        assert_close(call.operands[1], row)
    branches = [call for call in calls if "." in call.path]
    assert [call.steps for call in branches] == [(0,), (1,), (2,), (3,)]
    assert ["true" in call.path for call in branches] == [False, True, True, True]


def test_random_programs_and_programs_without_control_flow_have_no_calls() -> None:
    class Noisy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 3, torch.sin, torch.cos, (x + torch.rand_like(x),))

    assert body_calls(torch.export.export(Noisy(), (ROW,)), (ROW,)) == []
    assert body_calls(torch.export.export(torch.nn.ReLU(), (ROW,)), (ROW,)) == []
