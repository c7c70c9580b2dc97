"""Functions that write into tensors, through views of all kinds; some at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch


def chain(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    before = y * 2
    y += x
    y.mul_(3)
    return before + y


def row_of_topk(x: torch.Tensor) -> torch.Tensor:
    values, indices = torch.topk(x, 2)
    values /= values.sum(-1, keepdim=True)
    return values * indices


def written_by_index(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[torch.tensor([2, 0])] = x[:2]
    return y * 2


def operators(x: torch.Tensor) -> torch.Tensor:
    y = (x * 10).to(torch.int32)
    y ^= 5
    y |= 8
    y &= 31
    y <<= 1
    return y


def filled_and_copied(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, z = x * 1, x + 1
    y.zero_()
    z.fill_(2)
    y.copy_(x[0])
    return y, z


def itself_as_the_result(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    z = y.add_(1)
    y.mul_(z)
    return y, z


def seen_through_a_later_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y += 1
    return y.transpose(0, 1) + 1


def seen_through_earlier_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    row, turned, flat = y[0], y.t(), y.view(-1)
    y += 1
    return row * 1, turned[1], flat[3:7], y.sum()


def through_views(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[0] += 1
    y[:, 1:3] *= 2
    y.t()[1].sub_(1)
    y.view(2, 6)[1, ::2] = 9
    y.unsqueeze(0).squeeze(0)[-1].neg_()
    y.permute(1, 0)[3, 0] = 7
    torch.diagonal(y, 1).fill_(4)
    y.narrow(1, 1, 2).add_(x[:, :2])
    return y * 1


def through_parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    left, right = y.chunk(2, dim=1)
    left.add_(1)
    first, *_others = y.unbind(0)
    first.mul_(3)
    narrow, _ = y.split([1, 3], dim=1)
    narrow.exp_()
    return y, right, first


def two_views_of_one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    rows, columns = y[1:], y[:, 1:]
    rows.add_(1)
    columns.mul_(2)
    rows.sub_(columns[1:, :1].clone())
    return y, rows, columns


def a_view_whose_tensor_is_forgotten(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).as_strided((2, 4), (4, 1))  # cannot be undone, and need not be
    y += 1
    return y * 1


def dropout_returns_its_argument(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    z = torch.nn.functional.dropout(y, training=False)
    z += 1
    return y, z + x


def einsum_is_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    torch.einsum("ij->ji", y)[0] += 1
    return y


def turned_in_place(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    y += 1
    z = y[0]
    y.transpose_(0, 1).unsqueeze_(0)
    return y, z, y[0, 1]


def one_of_several_results(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values, indices = x.sort()
    values[0] = 7
    return values, indices


def input_itself(x: torch.Tensor) -> torch.Tensor:
    x += 1
    return x * 2


def row_of_an_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    last = x[-1]
    x[0] = 3
    last.mul_(2)
    return (x.sum(0),)


def dropped_input(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    torch.nn.functional.dropout(x, training=False).add_(1)
    return (x * 1,)


VIEWS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda t: t[0] if t.dim() > 1 else t[1:],
    lambda t: t[..., ::2],
    lambda t: t.transpose(0, -1),
    lambda t: t.unsqueeze(0),
    lambda t: t.reshape(-1),
    lambda t: torch.nn.functional.dropout(t, training=False),
    lambda t: t.unbind(-1)[-1] if t.dim() > 1 else t,
    lambda t: t.split(1, 0)[0],
)


WRITES: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda t: t.add_(1),
    lambda t: t.mul_(-2),
    lambda t: t.copy_(t.flip(0)),
    lambda t: t.select(0, 0).fill_(3),
)


def random_function(seed: int) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]:
    """Return a function that takes views and writes through them, at random."""
    dice = random.Random(seed)
    steps = [(dice.random(), dice.random(), dice.random()) for _ in range(12)]

    def function(x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen = [x * 2, cache]
        for kind, which, what in steps:
            tensor = seen[int(which * len(seen))]
            if kind < 0.5:
                seen.append(VIEWS[int(what * len(VIEWS))](tensor))
            elif tensor.dim():
                WRITES[int(what * len(WRITES))](tensor)
        return tuple(t * 1 for t in seen)

    return function


def overlapping(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.as_strided((2, 4), (4, 1)).add_(1)
    return y * 1


def turned_and_written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.transpose_(0, 1)
    y += 1
    return y


def training_norm(x: torch.Tensor) -> torch.Tensor:
    mean, variance = torch.zeros(4), torch.ones(4)
    return torch.nn.functional.batch_norm(x, mean, variance, training=True) + mean
