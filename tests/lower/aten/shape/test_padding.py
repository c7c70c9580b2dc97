"""Borders, and blocks of images as columns."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lower.checking import check, op_types

X = torch.arange(60.0).view(3, 4, 5)
IMAGE = torch.randn(2, 3, 6, 7)
N = torch.export.Dim("n", min=4)

CASES = {
    "constant": lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 1, 2, 0, 1, 1), value=-1.5)),
    "constant_negative": lambda x: (F.pad(x, (-1, 2)), F.pad(x, (1, -2, -1, -1), value=3)),
    "constant_nothing": lambda x: F.pad(x, (0, 0, 0, 0)),
    "reflect": lambda x: (F.pad(x, (1, 3), mode="reflect"), F.pad(x, (2, 0, 1, 3), "reflect")),
    "reflect_negative": lambda x: F.pad(x, (-1, 2), mode="reflect"),
    "reflect_3d": lambda x: F.pad(x[None, None], (1, 2, 3, 0, 1, 1), mode="reflect"),
    "replicate": lambda x: (
        F.pad(x, (7, 3), mode="replicate"),
        F.pad(x, (2, 0, 1, 3), "replicate"),
    ),
    "replicate_3d": lambda x: F.pad(x[None], (1, 2, 3, 0, 1, 1), mode="replicate"),
    "circular": lambda x: (F.pad(x, (5, 3), mode="circular"), F.pad(x, (2, 0, 1, 3), "circular")),
    "infinite": lambda x: F.pad(x, (1, 1), value=float("-inf")),
}
BLOCKS = {
    "unfold": lambda x: F.unfold(x, (2, 3)),
    "unfold_all": lambda x: F.unfold(x, (2, 3), dilation=(2, 1), padding=(1, 2), stride=(2, 3)),
    "unfold_one_image": lambda x: F.unfold(x[0], 2, stride=2),
    "fold": lambda x: F.fold(F.unfold(x, (2, 3)), (6, 7), (2, 3)),
    "fold_all": lambda x: F.fold(
        F.unfold(x, 3, dilation=2, padding=2, stride=2), (6, 7), 3, dilation=2, padding=2, stride=2
    ),
    "fold_one_image": lambda x: F.fold(F.unfold(x[0], 2, stride=2), (6, 6), 2, stride=2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decompose", [False, True])
def test_borders(name: str, decompose: bool) -> None:
    check(CASES[name], X, decompose=decompose)


@pytest.mark.parametrize("opset", [18, 21, 26])
def test_opsets(opset: int) -> None:
    check(CASES["circular"], X, opset=opset)
    check(CASES["constant"], X, opset=opset)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.int16]
)
def test_dtypes(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    check(
        lambda x: (F.pad(x, (1, 2), value=2), F.pad(x, (1, -1)), F.pad(x, (2, 1), "replicate")), x
    )


def test_booleans() -> None:
    check(lambda x: (F.pad(x, (1, 1), value=True), F.pad(x, (1, 1))), X > 20)


def test_a_constant_border_is_one_node() -> None:
    assert op_types(check(lambda x: F.pad(x, (1, 2)), X)) == ["Pad"]


def test_symbolic_sizes() -> None:
    def padded(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n = x.shape[0]
        return (
            F.pad(x, (1, 1, 0, n)),
            F.pad(x[None], (1, 1, 2, 1), mode="reflect"),
            F.pad(x[None], (1, 1, 2, 1), mode="circular"),
            F.pad(x, (0, 0, -1, 2)),
        )

    check(padded, torch.randn(5, 4), dynamic_shapes=({0: N},), others=[(torch.randn(9, 4),)])


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks(name: str, dtype: torch.dtype) -> None:
    check(BLOCKS[name], IMAGE.to(dtype))


def test_blocks_of_symbolic_images() -> None:
    check(
        lambda x: F.unfold(x, (2, 3), padding=1),
        IMAGE,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        others=[(torch.randn(5, 3, 6, 7),)],
    )


@pytest.mark.parametrize("mode", ["replicate", "reflect"])
def test_a_border_that_cuts_off_axes_of_any_size(mode: str) -> None:
    shapes = ({2: torch.export.Dim("n", min=5), 3: torch.export.Dim("m", min=5)},)
    others = [(torch.randn(2, 3, 9, 6),)]
    x = torch.randn(2, 3, 6, 7)
    check(lambda x: F.pad(x, (-4, 2, 3, -1), mode), x, dynamic_shapes=shapes, others=others)
