"""Windows, strided views and diagonals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from coreai_onnx.errors import LoweringError
from tests.lower.checking import check, lower_module, run_model
from tests.support.tolerances import assert_close

X = torch.randn(5, 6, 4)
N = torch.export.Dim("n", min=4)


def _resized(x: torch.Tensor, *size: int) -> torch.Tensor:
    return x.resize_(size)


CASES = {
    "unfold": lambda x: (x.unfold(1, 3, 2), x.unfold(-1, 4, 1), x.unfold(0, 1, 3)),
    "unfold_zero_d": lambda x: x.sum().unfold(0, 1, 1),
    "as_strided": lambda x: x.as_strided((3, 4), (7, 2), 5),
    "as_strided_overlap": lambda x: x.as_strided((4, 3), (1, 1)),
    "as_strided_zero_d": lambda x: x.as_strided((), (), 3),
    "as_strided_transposed": lambda x: x.transpose(0, 2).as_strided((3, 2), (1, 10), 2),
    "as_strided_expanded": lambda x: x[:1].expand(3, 6, 4).as_strided((3, 2), (1, 2)),
    "resize": lambda x: (_resized(x + 1, 3, 5), _resized(x * 2, 120), _resized(x.clone(), 0, 2)),
    "resize_transposed": lambda x: _resized((x + 1).transpose(0, 2), 7),
    "resize_and_write": lambda x: _resized(x[0] + 1, 2, 3).add_(1),
    "diagonal": lambda x: (x.diagonal(), x.diagonal(1, 0, 2), x.diagonal(-2, -1, 1)),
    "diagonal_outside": lambda x: x.diagonal(9, 0, 1),
    "linalg_diagonal": lambda x: torch.linalg.diagonal(x, offset=-1),
    "diag": lambda x: (x[0].diag(), x[0, 0].diag(1)),
    "diag_embed": lambda x: (x.diag_embed(), x.diag_embed(1), x.diag_embed(-2, 0, 2)),
    "trace": lambda x: x[0].trace(),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decompose", [False, True])
def test_views(name: str, decompose: bool) -> None:
    check(CASES[name], X, decompose=decompose)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_dtypes(dtype: torch.dtype) -> None:
    x = (torch.randn(4, 6) > 0).to(dtype)
    check(lambda x: (x.unfold(1, 2, 2), x.diagonal(1), x.diag_embed(1)), x)


def test_symbolic_sizes() -> None:
    check(
        lambda x: (x.unfold(0, 2, 2), x.diagonal(-1), x.diag_embed(), x.diagonal(2)),
        torch.randn(5, 6),
        dynamic_shapes=({0: N, 1: torch.export.Dim("m", min=4)},),
        others=[(torch.randn(9, 4),), (torch.randn(4, 12),)],
    )


def test_large_strided_views_are_computed() -> None:
    x = torch.randn(4, 3000)
    check(lambda x: x.as_strided((4, 999, 6), (3000, 3, 1)), x)


def test_a_part_of_a_storage_is_refused() -> None:
    with pytest.raises(LoweringError, match="storage"):
        check(lambda x: x[:, ::2].as_strided((3, 3), (1, 1)), X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[1].as_strided((2, 6, 4), (24, 4, 1)),
        lambda x: x[1].as_strided((6, 4), (4, 1), 0),
    ],
)
def test_elements_outside_of_a_part_are_refused(function: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(LoweringError, match="storage of which its input is only a part"):
        check(function, X)


def test_new_elements_of_a_resized_tensor_are_zeros() -> None:
    model = lower_module(lambda x: _resized(x + 0, 4, 40), (X,))
    (found,) = run_model(model, [X])
    assert_close(found.reshape(-1)[:120], X.flatten())
    assert not found.reshape(-1)[120:].any()


def test_a_part_of_a_tensor_is_resized_by_torch() -> None:
    check(lambda x: _resized(x[1], 2, 3), X)
    with pytest.raises(LoweringError, match="only a part"):
        check(lambda x: _resized(x[1], 60), X)


def test_a_resized_tensor_of_any_size() -> None:
    n = torch.export.Dim("n", min=2, max=9)
    check(
        lambda x: _resized(x + 1, 2, x.shape[0]),
        X,
        dynamic_shapes=({0: n},),
        others=[(X[:2],)],
    )


def test_a_memory_format_of_a_resized_tensor_is_refused() -> None:
    with pytest.raises(LoweringError, match="memory_format"):
        check(lambda x: (x + 1).resize_(1, 2, 3, 4, memory_format=torch.channels_last), X)


def test_trace_of_integers_and_empty_diagonals() -> None:
    check(lambda x: x.trace(), torch.arange(12, dtype=torch.int32).view(3, 4))
    check(lambda x: (x.diagonal(), x.diag_embed()), torch.zeros(3, 0))
