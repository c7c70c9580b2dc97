"""Norms over trailing axes, and vector norms, against torch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from coreai_onnx.composites.norms import (
    LINALG_VECTOR_NORM,
    layer_norm,
    linalg_vector_norm,
    rms_norm,
    skip_layer_norm,
    skip_rms_norm,
)
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("shape", [(16,), (4, 8)], ids=str)
def test_gives_torchs_rms_norm(shape: tuple[int, ...], scaled: bool) -> None:
    x = torch.randn(2, 3, *shape)
    scale = torch.randn(shape) if scaled else None
    axes = tuple(range(-len(shape), 0))
    expected = F.rms_norm(x, shape, scale, eps=1e-4)
    assert_close(rms_norm(x, scale, axes=axes, eps=1e-4), expected)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_a_scale_of_the_same_dtype_is_llamas(dtype: torch.dtype) -> None:
    norm = LlamaRMSNorm(32, eps=1e-5).to(dtype)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 5, 32).to(dtype)
    assert_close(rms_norm(x, norm.weight, eps=1e-5), norm(x).detach())


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_a_wide_scale_is_gemmas(dtype: torch.dtype) -> None:
    norm = GemmaRMSNorm(32, eps=1e-5)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 5, 32).to(dtype)
    assert_close(rms_norm(x, 1.0 + norm.weight, eps=1e-5), norm(x).detach())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keeps_the_dtype_of_the_input(dtype: torch.dtype) -> None:
    x = torch.randn(3, 8).to(dtype)
    for scale in (None, torch.ones(8), torch.ones(8, dtype=dtype)):
        actual = rms_norm(x, scale)
        assert actual.dtype == dtype
        assert actual.shape == x.shape


def test_eps_counts_where_the_input_is_small() -> None:
    x = torch.full((1, 4), 1e-3)
    assert_close(rms_norm(x, eps=3e-6), torch.full((1, 4), 0.5))


def test_a_scale_per_head() -> None:
    x, scale = torch.randn(2, 3, 5, 8), torch.randn(3, 1, 8)
    assert_close(rms_norm(x, scale), F.rms_norm(x, (8,), eps=1e-5) * scale)


def test_gives_torchs_norm_of_the_sum_and_the_sum_of_skip_rms_norm() -> None:
    x, skip, scale = torch.randn(2, 5, 8), torch.randn(2, 5, 8), torch.randn(8)
    output, total = skip_rms_norm(x, skip, scale, eps=1e-4)
    assert_close(total, x + skip)
    assert_close(output, F.rms_norm(x + skip, (8,), scale, eps=1e-4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_sum_is_rounded_before_it_is_normalized_of_skip_rms_norm(dtype: torch.dtype) -> None:
    x, skip = (torch.randn(2, 5, 64).to(dtype) for _ in range(2))
    output, total = skip_rms_norm(x, skip)
    assert total.dtype == output.dtype == dtype
    assert_close(output, rms_norm(x + skip))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", ["scale_bias", "scale", "bias", "none"])
@pytest.mark.parametrize("shape", [(16,), (4, 8)], ids=str)
def test_gives_torchs_layer_norm(shape: tuple[int, ...], affine: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, *shape).to(dtype)
    scale = torch.randn(shape).to(dtype) if "scale" in affine else None
    bias = torch.randn(shape).to(dtype) if "bias" in affine else None
    axes = tuple(range(-len(shape), 0))
    wide = [None if t is None else t.double() for t in (scale, bias)]
    expected = F.layer_norm(x.double(), shape, *wide, eps=1e-4).to(dtype)
    assert_close(layer_norm(x, scale, bias, axes=axes, eps=1e-4), expected)


def test_gives_torchs_norm_of_the_sum_and_the_sum_of_skip_layer_norm() -> None:
    x, skip, scale = torch.randn(2, 5, 8), torch.randn(2, 5, 8), torch.randn(8)
    output, total = skip_layer_norm(x, skip, scale, eps=1e-4)
    assert_close(total, x + skip)
    assert_close(output, F.layer_norm(x + skip, (8,), scale, None, 1e-4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_sum_is_rounded_before_it_is_normalized_of_skip_layer_norm(dtype: torch.dtype) -> None:
    x, skip = (torch.randn(2, 5, 64).to(dtype) for _ in range(2))
    output, total = skip_layer_norm(x, skip)
    assert total.dtype == output.dtype == dtype
    assert_close(output, layer_norm(x + skip))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 2.0, 3.0, -2.0, math.inf, -math.inf])
def test_gives_the_definition(order: float, dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5).to(dtype)
    magnitudes = x.double().abs()
    if order == 0:
        expected = (magnitudes != 0).sum((0, 2)).double()
    elif math.isinf(order):
        expected = magnitudes.amax((0, 2)) if order > 0 else magnitudes.amin((0, 2))
    else:
        expected = (magnitudes**order).sum((0, 2)) ** (1 / order)
    assert_close(linalg_vector_norm(x, ord=order, axes=(0, 2)), expected.to(dtype))


def test_axes_may_stay() -> None:
    assert linalg_vector_norm(torch.ones(2, 3), axes=(-1,), keep_dim=1).shape == (2, 1)


def test_axes_are_counted_from_the_front() -> None:
    dims = {"input": (2, 3, 4)}
    assert LINALG_VECTOR_NORM.canonical(dims, {"axes": (-1, 0)})["axes"] == [0, 2]
    assert LINALG_VECTOR_NORM.check(dims, {"axes": (0, -3)}) == "axes [0, -3] name one axis twice"
    assert LINALG_VECTOR_NORM.check(dims, {"axes": ()}) == "axes is empty"
