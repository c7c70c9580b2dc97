"""Random tensors: sizes, dtypes, ranges and moments, as the numbers are the runtime's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.lower.checking import lower_module, run_model

X = torch.zeros(200, 50)

# what to call, the mean and the standard deviation of what comes
CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "rand": (lambda x: torch.rand(200, 50) + x, 0.5, 12**-0.5),
    "rand_like": (torch.rand_like, 0.5, 12**-0.5),
    "randn": (lambda x: torch.randn(200, 50) + x, 0, 1),
    "randn_like": (lambda x: torch.randn_like(x, dtype=torch.float64), 0, 1),
    "randint": (lambda x: torch.randint(10, (200, 50)), 4.5, (99 / 12) ** 0.5),
    "randint_low": (lambda x: torch.randint(-10, 10, (200, 50)), -0.5, (399 / 12) ** 0.5),
    "randint_like": (lambda x: torch.randint_like(x, 10), 4.5, (99 / 12) ** 0.5),
    "randint_like_low": (lambda x: torch.randint_like(x, 5, 15), 9.5, (99 / 12) ** 0.5),
    "normal": (lambda x: torch.normal(2.0, 3.0, (200, 50)), 2, 3),
    "normal_tensor": (lambda x: torch.normal(x + 2, 3.0), 2, 3),
    "normal_tensors": (lambda x: torch.normal(x + 2, x + 3), 2, 3),
    "normal_deviations": (lambda x: torch.normal(2.0, x + 3), 2, 3),
    "normal_": (lambda x: x.clone().normal_(2, 3), 2, 3),
    "uniform_": (lambda x: x.clone().uniform_(2, 4), 3, 2 * 12**-0.5),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.25), 0.25, 0.1875**0.5),
    "bernoulli_p": (lambda x: x.clone().bernoulli_(0.25), 0.25, 0.1875**0.5),
    "bernoulli_tensor": (lambda x: x.clone().bernoulli_(x + 0.25), 0.25, 0.1875**0.5),
    "exponential_": (lambda x: x.clone().exponential_(2.0), 0.5, 0.5),
    "geometric_": (lambda x: x.clone().geometric_(0.5), 2, 2**0.5),
    "log_normal_": (lambda x: x.clone().log_normal_(0.0, 0.25).log(), 0, 0.25),
    "multinomial": (lambda x: torch.multinomial(x[:, :3] + 1, 50, replacement=True), 1, 0.8165),
}


def run(
    function: Callable[..., Any],
    *args: torch.Tensor,
    dynamic_shapes: Any = None,
    opset: int = 23,
) -> np.ndarray:
    (result,) = run_model(lower_module(function, args, dynamic_shapes, opset=opset), args)
    return result


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("opset", [21, 23])
def test_moments(name: str, opset: int) -> None:
    function, mean, deviation = CASES[name]
    result = run(function, X, opset=opset)
    expected = function(X)
    assert result.shape == tuple(expected.shape)
    assert result.dtype == expected.numpy().dtype
    assert abs(result.mean() - mean) < 6 * deviation / len(result.ravel()) ** 0.5
    assert abs(result.std() - deviation) < 0.1 * deviation


def test_every_run_draws_anew() -> None:
    model = lower_module(lambda x: torch.randn(3, 4) + x[:3, :4], (X,))
    first, second = (run_model(model, (X,))[0] for _ in range(2))
    assert (first != second).all()


def test_ranges() -> None:
    uniform = run(torch.rand_like, X)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    integers = run(lambda x: torch.randint(-3, 4, (200, 50)), X)
    assert set(np.unique(integers)) == set(range(-3, 4))


def test_cauchy_has_its_quartiles() -> None:
    result = run(lambda x: x.clone().cauchy_(1.0, 2.0), X)
    found = np.quantile(result, [0.25, 0.5, 0.75])
    assert np.abs(found - [-1, 1, 3]).max() < 0.3


def test_permutations_and_draws_have_no_repeats() -> None:
    assert sorted(run(lambda x: torch.randperm(100) + x[0, 0].long(), X)) == list(range(100))
    drawn = run(lambda x: torch.multinomial(x[:, :10] + 1, 5), X)
    assert all(len(set(row)) == 5 for row in drawn)


def test_draws_follow_the_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0])
    with_replacement = run(lambda w: torch.multinomial(w, 4000, replacement=True), weights)
    assert abs((with_replacement == 2).mean() - 0.75) < 0.05
    first = run(lambda w: torch.multinomial(w.expand(4000, 3), 1), weights)
    assert abs((first == 2).mean() - 0.75) < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    result = run(lambda x: torch.rand_like(x, dtype=dtype).sum(dtype=torch.float32), X)
    assert abs(float(result) / X.numel() - 0.5) < 0.05


def test_symbolic_sizes() -> None:
    n = torch.export.Dim("n")
    result = run(
        lambda x: torch.randn(x.shape[0], 50) + torch.rand_like(x),
        X,
        dynamic_shapes=({0: n},),
    )
    assert result.shape == (200, 50)
    assert abs(result.mean() - 0.5) < 0.1
