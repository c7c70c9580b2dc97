"""Shapes of complex tensors: negative axes never reach the axis of pairs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.lower.checking import check

Z = torch.randn(2, 3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([2, 0])


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z.reshape(6, -1),
        lambda z: z.view(24),
        lambda z: z.flatten(1),
        lambda z: z.unflatten(-1, (2, 2)),
        lambda z: z.permute(-1, 0, 1),
        lambda z: z.transpose(-1, -2),
        lambda z: z.movedim(-1, 0),
        lambda z: z[:, -1],
        lambda z: z[..., 1:3],
        lambda z: z[..., -1, ::2],
        lambda z: z.unsqueeze(-1),
        lambda z: z[:, :1].squeeze(1),
        lambda z: z[:, :1].expand(-1, 5, 4),
        lambda z: z.expand(2, -1, -1, -1),
        lambda z: z.repeat(1, 2, 1),
        lambda z: torch.cat([z, z.real], -1),
        lambda z: torch.stack([z, z], -1),
        lambda z: z.flip(-1).roll(1, -1),
        lambda z: z.tril(),
        lambda z: z.diagonal(dim1=-2, dim2=-1),
        lambda z: z[:, INDEX],
        lambda z: z.index_select(-1, INDEX),
        lambda z: torch.nn.functional.pad(z, (1, 2)),
        lambda z: z.clone().contiguous(),
    ],
)
def test_moves(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(function, Z)


def test_several_results() -> None:
    check(lambda z: z.split(2, -1), Z)
    check(lambda z: z.chunk(2, 0), Z)
    check(lambda z: z.unbind(-1), Z)


class Stores(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(2, 3, 4, dtype=dtype))

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(source)
        return self.kept + 1


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize(
    ("dtype", "source"),
    [
        (torch.complex64, Z),
        (torch.complex64, Z[0]),
        (torch.complex64, Z.real),
        (torch.complex128, Z),
        (torch.float32, Z),
    ],
)
def test_copies_into_a_buffer(dtype: torch.dtype, source: torch.Tensor) -> None:
    check(Stores(dtype), source)


def test_any_batch() -> None:
    shapes = ({0: torch.export.Dim("n")},)
    check(
        lambda z: z.reshape(z.shape[0], -1)[:, None].expand(-1, 2, -1),
        Z,
        dynamic_shapes=shapes,
        others=[(Z[:1].repeat(3, 1, 1),)],
    )
