"""Rotary embedding's reference against Hugging Face's two lane orders, and its positions."""

from __future__ import annotations

import pytest
import torch
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as interleaved
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves

from coreai_onnx.composites.rotary import rope
from tests.support.tolerances import assert_close

BASE = 10000.0


def angles(positions: torch.Tensor, lanes: int, base: float = BASE) -> torch.Tensor:
    """``[..., lanes / 2]`` angles in float32."""
    exponent = torch.arange(0, lanes, 2, dtype=torch.float32) / lanes
    return positions.float()[..., None] / base**exponent


def test_halves_are_llamas() -> None:
    x, positions = torch.randn(2, 3, 5, 8), torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 20, 21]])
    angle = angles(positions, 8)
    full = torch.cat([angle, angle], dim=-1)
    expected, _ = halves(x, x, full.cos(), full.sin())
    assert_close(rope(x, position_ids=positions), expected)
    given = rope(x, angle.cos().unsqueeze(1), angle.sin().unsqueeze(1))
    assert_close(given, expected)


def test_interleaved_are_coheres() -> None:
    x, positions = torch.randn(2, 3, 5, 8), torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 20, 21]])
    full = angles(positions, 8).repeat_interleave(2, dim=-1)
    expected, _ = interleaved(x, x, full.cos(), full.sin())
    assert_close(rope(x, position_ids=positions, interleaved=1), expected)


@pytest.mark.parametrize("interleave", [0, 1])
def test_rotates_like_complex_numbers(interleave: int) -> None:
    x = torch.randn(1, 2, 6, 8, dtype=torch.float64)
    pairs = x.unflatten(-1, (4, 2)) if interleave else x.unflatten(-1, (2, 4)).transpose(-1, -2)
    turned = torch.view_as_complex(pairs.contiguous()) * torch.polar(
        torch.ones(6, 4), angles(torch.arange(6), 8)
    )
    back = torch.view_as_real(turned)
    expected = (back if interleave else back.transpose(-1, -2)).flatten(-2)
    assert_close(rope(x, interleaved=interleave), expected)


@pytest.mark.parametrize("shape", [(), (1,), (2,), (2, 1)], ids=str)
def test_offsets(shape: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, 5, 8)
    offset = torch.arange(3, 3 + max(torch.Size(shape).numel(), 1)).reshape(shape)
    starts = offset.reshape(-1, 1).expand(2, 1)
    expected = rope(x, position_ids=starts + torch.arange(5))
    assert_close(rope(x, offset=offset), expected)


def test_partial_rotation_passes_the_rest_through() -> None:
    x = torch.randn(2, 3, 5, 8)
    actual = rope(x, dims=4)
    assert_close(actual[..., 4:], x[..., 4:])
    assert_close(actual[..., :4], rope(x[..., :4]))
    assert_close(rope(x, dims=8), rope(x))


def test_rank_three_is_one_batch() -> None:
    x = torch.randn(3, 5, 8)
    assert_close(rope(x), rope(x[None])[0])


def test_frequencies_scale_and_base() -> None:
    x = torch.randn(1, 2, 5, 8)
    freqs = angles(torch.tensor(1), 8, base=500.0)
    assert_close(rope(x, freqs=freqs), rope(x, base=500.0))
    assert_close(rope(x, scale=0.5), rope(x, freqs=0.5 * angles(torch.tensor(1), 8)))


def test_only_one_of_cos_and_sin_is_ignored() -> None:
    x = torch.randn(1, 2, 5, 8)
    assert_close(rope(x, cos=torch.zeros(5, 4)), rope(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_is_rounded_once(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 5, 8).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    actual = rope(x)
    assert actual.dtype == dtype
    assert_close(actual, rope(x.to(wide)).to(dtype))
