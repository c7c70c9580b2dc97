"""Views: sizes and orders of axes, static and symbolic."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import check, op_types

BATCH, SEQ = torch.export.Dim("batch"), torch.export.Dim("seq")
X = torch.randn(2, 3, 4)

SIZES = {
    "view": lambda x: x.view(6, -1),
    "view_zero_d": lambda x: x.sum().view(1, 1),
    "reshape": lambda x: x.reshape(-1),
    "reshape_as": lambda x: x.reshape_as(torch.zeros(4, 6)),
    "view_as": lambda x: x.view_as(torch.zeros(4, 6)),
    "ravel": lambda x: x.ravel(),
    "flatten": lambda x: x.flatten(1),
    "flatten_middle": lambda x: x[None].flatten(1, -2),
    "flatten_zero_d": lambda x: x[0, 0, 0].flatten(),
    "unflatten": lambda x: x.unflatten(-1, (2, -1)),
    "squeeze": lambda x: x[:1, :, :1].squeeze(),
    "squeeze_dim": lambda x: x[:1].squeeze(0).squeeze(0),
    "squeeze_dims": lambda x: x[:1, :, :1].squeeze((0, 1, -1)),
    "squeeze_zero_d": lambda x: x.sum().squeeze(-1),
    "unsqueeze": lambda x: (x.unsqueeze(-1), x.unsqueeze(0), x.sum().unsqueeze(0)),
    "expand": lambda x: x[:, :1].expand(5, 2, 3, -1),
    "expand_as": lambda x: x[:1].expand_as(x),
    "broadcast_to": lambda x: x[:, :, :1].broadcast_to(2, 3, 7),
    "expand_empty": lambda x: x[:1].expand(0, 3, 4),
}
ORDERS = {
    "permute": lambda x: x.permute(2, 0, -2),
    "transpose": lambda x: x.transpose(-1, 0),
    "swapaxes": lambda x: x.swapaxes(1, 2),
    "swapdims": lambda x: x.swapdims(1, 2),
    "t": lambda x: (x[0].t(), x[0, 0].t(), x.sum().t()),
    "mT": lambda x: x.mT,
    "mH": lambda x: x.mH,
    "adjoint": lambda x: x.adjoint(),
    "T": lambda x: x[0].T,
    "movedim": lambda x: x.movedim(0, -1),
    "movedims": lambda x: x[None].movedim((0, 3), (2, 0)),
    "moveaxis": lambda x: x.moveaxis(-1, 0),
    "movedim_zero_d": lambda x: x.sum().movedim(0, 0),
    "conj": lambda x: x.conj(),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("decompose", [False, True])
def test_sizes(name: str, decompose: bool) -> None:
    check(SIZES[name], X, decompose=decompose)


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("decompose", [False, True])
def test_orders(name: str, decompose: bool) -> None:
    check(ORDERS[name], X, decompose=decompose)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.bool]
)
def test_dtypes(dtype: torch.dtype) -> None:
    x = (torch.randn(2, 1, 4) > 0).to(dtype)
    check(lambda x: x.expand(2, 3, 4).permute(2, 0, 1).reshape(4, -1).unsqueeze(1), x)


def test_empty_tensors() -> None:
    x = torch.zeros(2, 0, 4)
    check(lambda x: (x.view(0, 7), x.flatten(), x.reshape(4, 0), x.permute(1, 0, 2)), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_expansions_to_nothing(dtype: torch.dtype) -> None:
    check(lambda x: (x.expand(0, 2) + 1, x.repeat(0, 1) + 1), torch.ones(1, 2, dtype=dtype))


def test_nothing_is_made_of_views_that_change_nothing() -> None:
    model = check(lambda x: x.view(2, 3, 4).permute(0, 1, 2).expand(2, -1, 4) + 1, X)
    assert op_types(model) == ["Add"]


def test_heads_of_symbolic_sizes() -> None:
    def heads(x: torch.Tensor) -> torch.Tensor:
        batch, seq, width = x.shape
        y = x.view(batch, seq, 2, width // 2).transpose(1, 2)
        return y.reshape(batch, 2, -1).flatten(0, 1)

    check(
        heads,
        torch.randn(2, 3, 8),
        dynamic_shapes=({0: BATCH, 1: SEQ},),
        others=[(torch.randn(5, 7, 8),), (torch.randn(1, 2, 8),)],
    )


def test_symbolic_sizes_of_every_kind() -> None:
    def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.flatten(),
            x.view(-1, 4).unsqueeze(0),
            x[:, :1].expand(-1, x.shape[0] + 1, -1),
            x.unflatten(0, (-1, 1)),
            x.movedim(0, 1).squeeze(),
            x.reshape(x.shape[1], x.shape[0], 2, 2),
        )

    check(
        views,
        torch.randn(2, 3, 4),
        dynamic_shapes=({0: BATCH, 1: SEQ},),
        others=[(torch.randn(6, 5, 4),)],
    )


@pytest.mark.parametrize("opset", [18, 21, 26])
def test_opsets(opset: int) -> None:
    check(lambda x: x.flatten(1).unsqueeze(1).expand(2, 3, 12).squeeze(), X, opset=opset)


def test_prims() -> None:
    prims = torch.ops.prims
    check(
        lambda x: (
            prims.broadcast_in_dim(x, (5, 2, 3, 6, 4), (1, 2, 4)),
            prims.collapse(x, 0, 1),
            prims.split_dim(x, 2, 2),
            prims.transpose(x, (2, 1, 0)),
            prims.squeeze(x[:1], [0]),
            prims.reshape(x, (4, 6)),
        ),
        X,
    )
