"""Ops that become composite calls, with all their argument forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import coreai_onnx
from tests.lower.checking import Wrapped
from tests.support.tolerances import assert_close


def check(
    function: Callable[..., torch.Tensor], *args: torch.Tensor, decompose: bool = False
) -> dict[str, int]:
    """Assert equality with torch through bodies; return the composites that were kept."""
    program = torch.export.export(Wrapped(function), args)
    if decompose:
        program = program.run_decompositions()
    converted = coreai_onnx.TorchConverter().add_exported_program(program).to_onnx()
    (actual,) = converted.run(*args, kernels=False)
    assert_close(actual, function(*args))
    return {k.removeprefix("ai.coreai::"): v for k, v in converted.composites().items()}


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


@pytest.mark.parametrize("decompose", [False, True])
def test_layer_norm_keeps_axes_weight_and_bias(decompose: bool) -> None:
    x, w, b = tensors((2, 3, 4, 5), (4, 5), (4, 5))
    assert check(
        lambda x, w, b: F.layer_norm(x, (4, 5), w, b, 1e-3), x, w, b, decompose=decompose
    ) == {"layer_norm": 1}
    assert check(lambda x: F.layer_norm(x, (5,)), x, decompose=decompose) == {"layer_norm": 1}


def test_layer_norm_statistics_that_are_used_are_spelled_out() -> None:
    x, w, b = tensors((2, 5), (5,), (5,))
    found = check(lambda x, w, b: torch.native_layer_norm(x, (5,), w, b, 1e-5)[2], x, w, b)
    assert found == {}


def test_rms_norm_has_torchs_epsilon_by_default() -> None:
    x, w = tensors((2, 3, 5), (5,))
    assert check(lambda x, w: F.rms_norm(x * 1e-4, (5,), w), x, w) == {"rms_norm": 1}
    assert check(lambda x, w: F.rms_norm(x, (3, 5), eps=0.1) * w, x, w) == {"rms_norm": 1}


@pytest.mark.parametrize(
    ("query", "key"),
    [((5, 8), (7, 8)), ((2, 5, 8), (2, 7, 8)), ((2, 3, 2, 5, 8), (2, 3, 2, 7, 8))],
    ids=["rank2", "rank3", "rank5"],
)
def test_attention_of_other_ranks_is_reshaped(query: tuple[int, ...], key: tuple[int, ...]) -> None:
    q, k, v = tensors(query, key, (*key[:-1], 6))
    assert check(F.scaled_dot_product_attention, q, k, v) == {"scaled_dot_product_attention": 1}


def test_attention_with_masks_scale_and_groups() -> None:
    q, k, v, bias = tensors((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), (5, 7))
    name = "scaled_dot_product_attention"
    grouped = check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True), q, k, v
    )
    assert grouped == {name: 1}
    masked = check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > 0, enable_gqa=True)
        + F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        q, k, v, bias,
    )  # fmt: skip
    assert masked == {f"{name}.bias": 1, f"{name}.mask": 1}


@pytest.mark.parametrize("decompose", [False, True])
def test_causal_attention_begins_in_the_upper_left_corner(decompose: bool) -> None:
    q, k, v = tensors((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8))
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        q,
        k,
        v,
        decompose=decompose,
    )


def test_integers_are_left_to_the_plain_lowering() -> None:
    x = torch.ones(2, 4)
    assert check(lambda x: F.layer_norm(x.double(), (4,)).float(), x) == {"layer_norm": 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_modules_of_torch_become_composites(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 8).to(dtype)
    norms = torch.nn.Sequential(torch.nn.RMSNorm(8), torch.nn.LayerNorm(8, bias=False)).to(dtype)
    with torch.no_grad():
        assert check(norms, x) == {"rms_norm": 1, "layer_norm": 1}


@pytest.mark.parametrize("dims", [(2, 4, 5, 7), (1, 1, 5, 7), (2, 1, 1, 7), (5, 7)], ids=str)
def test_attention_with_masks_of_every_shape(dims: tuple[int, ...]) -> None:
    q, k, v, mask = tensors((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6), dims)
    found = check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, 0.0, False, scale=0.4)
        + F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0, enable_gqa=True),
        q, k, v, mask,
    )  # fmt: skip
    name = "scaled_dot_product_attention"
    assert found == {f"{name}.bias": 1, f"{name}.mask": 1}
