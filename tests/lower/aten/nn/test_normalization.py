"""Lowerings of layer, RMS and group normalization."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lower.checking import check

BATCH = torch.export.Dim("batch")
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return values around 1."""
    return (torch.randn(shape) + 1).to(dtype)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (1,)])
@pytest.mark.parametrize("affine", [(), ("w",), ("w", "b"), ("b",)])
@pytest.mark.parametrize("decompose", [False, True])
def test_layer_norm(shape: tuple[int, ...], affine: tuple[str, ...], decompose: bool) -> None:
    w, b = (values(*shape) if name in affine else None for name in "wb")
    x = values(2, 5, *shape)
    check(lambda x, w, b: F.layer_norm(x, shape, w, b), x, w, b, decompose=decompose)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decompose", [False, True])
@pytest.mark.parametrize("opset", [18, 23])
def test_norms_of_other_dtypes(dtype: torch.dtype, decompose: bool, opset: int) -> None:
    x, w, b = values(2, 4, 4, dtype=dtype), values(4, dtype=dtype), values(4, dtype=dtype)
    for norm in (
        lambda x, w, b: F.layer_norm(x, (4,), w, b, 1e-6),
        lambda x, w, b: F.rms_norm(x, (4,), w),
        lambda x, w, b: F.group_norm(x, 2, w, b),
    ):
        check(norm, x, w, b, decompose=decompose, opset=opset)


def test_native_layer_norm_gives_its_statistics() -> None:
    check(
        lambda x, w, b: torch.native_layer_norm(x, (3, 4), w, b, 1e-5),
        values(2, 5, 3, 4),
        values(3, 4),
        values(3, 4),
    )


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("decompose", [False, True])
def test_rms_norm(
    shape: tuple[int, ...], eps: float | None, weight: bool, opset: int, decompose: bool
) -> None:
    w = values(*shape) if weight else None
    x = values(2, 5, *shape)
    check(lambda x, w: F.rms_norm(x, shape, w, eps), x, w, opset=opset, decompose=decompose)


def test_the_default_eps_is_that_of_float32_for_narrow_floats() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        check(lambda x: F.rms_norm(x, (4,)), torch.full((2, 4), 1e-3, dtype=dtype))


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 3, 4), (1, 6, 1, 1)])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("decompose", [False, True])
def test_group_norm(shape: tuple[int, ...], groups: int, opset: int, decompose: bool) -> None:
    if groups == 6 and shape[2:] in ((), (1, 1)):
        shape = (2, 18)  # more than one element per group, or torch refuses
    x, w, b = values(*shape), values(shape[1]), values(shape[1])
    check(lambda x, w, b: F.group_norm(x, groups, w, b), x, w, b, opset=opset, decompose=decompose)
    check(lambda x: F.group_norm(x, groups, eps=1e-2), x, opset=opset, decompose=decompose)


def test_native_group_norm_gives_its_statistics() -> None:
    check(lambda x: torch.native_group_norm(x, None, None, 2, 6, 12, 3, 1e-5), values(2, 6, 3, 4))


@pytest.mark.parametrize("opset", [18, 23])
def test_dynamic_sizes(opset: int) -> None:
    def norms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.layer_norm(x, (6,)), F.rms_norm(x, (6,)), F.group_norm(x, 2)

    check(
        norms,
        values(2, 4, 6),
        dynamic_shapes=({0: BATCH},),
        others=[(values(5, 4, 6),)],
        opset=opset,
    )


def test_an_empty_batch() -> None:
    check(lambda x: (F.layer_norm(x, (6,)), F.rms_norm(x, (6,))), values(0, 4, 6))
    check(lambda x: F.group_norm(x, 2), values(0, 4, 6))


def test_local_response_norm() -> None:
    check(lambda x: F.local_response_norm(x, 3), values(2, 5, 4, 4))


def test_weight_norm() -> None:
    check(torch._weight_norm, values(3, 4), values(3, 1))
