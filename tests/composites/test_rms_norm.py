"""RMS normalization's reference against torch's own and Hugging Face's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from coreai_onnx.composites.norms import rms_norm
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
