"""Functions that rotate by position: every convention of transformers, and what is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.glm import modeling_glm as glm
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from coreai_onnx.export.recognize.functions import function_block, rotary_block
from tests.support.tolerances import assert_close

Tensor = torch.Tensor


def halves(angle: Tensor) -> Tensor:
    return torch.cat([angle, angle], dim=-1)


def twice(angle: Tensor) -> Tensor:
    return angle.repeat_interleave(2, dim=-1)


CONVENTIONS = [
    (llama.apply_rotary_pos_emb, halves, 8),
    (qwen3_next.apply_rotary_pos_emb, halves, 8),
    (qwen3_next.apply_rotary_pos_emb, halves, 16),
    (gpt_oss.apply_rotary_pos_emb, lambda a: a, 8),
    (cohere.apply_rotary_pos_emb, twice, 8),
    (glm.apply_rotary_pos_emb, halves, 8),
    (glm.apply_rotary_pos_emb, halves, 16),
]


@pytest.mark.parametrize(("function", "widen", "lanes"), CONVENTIONS)
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_conventions(function: Any, widen: Any, lanes: int, unsqueeze_dim: int) -> None:
    block = rotary_block("f", function)
    assert (block.composite, block.reason) == ("rope", "")
    angle = widen(torch.randn(2, 5, 4))
    q, k = torch.randn(2, 3, 5, lanes), torch.randn(2, 1, 5, lanes)
    if unsqueeze_dim == 2:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    arguments = (q, k, angle.cos(), angle.sin(), unsqueeze_dim)
    for actual, expected in zip(block.replacement(*arguments), function(*arguments), strict=True):
        assert_close(actual, expected)


def test_one_tensor_at_a_time() -> None:
    def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tensor:
        return llama.apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim)[0]

    assert function_block("f", "apply_rotary", apply_rotary) is not None
    block = rotary_block("f", apply_rotary)
    angle, x = halves(torch.randn(2, 5, 4)), torch.randn(2, 3, 5, 8)
    assert_close(
        block.replacement(x, angle.cos(), angle.sin()), apply_rotary(x, angle.cos(), angle.sin())
    )


def test_another_rotation_is_refused() -> None:
    block = rotary_block("f", deepseek.apply_rotary_pos_emb_interleave)
    assert "on random inputs" in block.reason

    def apply_rotary_backwards(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        return llama.apply_rotary_pos_emb(q, k, cos, -sin)

    assert "the result differs" in rotary_block("f", apply_rotary_backwards).reason


def test_arguments_that_mean_something_else_are_refused() -> None:
    block = rotary_block("f", llama.apply_rotary_pos_emb)
    angle, x = halves(torch.randn(2, 5, 4)), torch.randn(2, 3, 5, 8)
    for bad in (0, 3):
        with pytest.raises(ValueError, match=f"heads on axis {bad}"):
            block.replacement(x, x, angle.cos(), angle.sin(), bad)
    with pytest.raises(ValueError, match="of a tensor of rank 3"):
        block.replacement(x[0], x[0], angle.cos(), angle.sin())

    def apply_rotary_at(q: Any, k: Any, cos: Any, sin: Any, position_ids: Any = None) -> Any:
        return llama.apply_rotary_pos_emb(q, k, cos, sin)

    block = rotary_block("f", apply_rotary_at)
    assert not block.reason
    with pytest.raises(ValueError, match="position_ids"):
        block.replacement(x, x, angle.cos(), angle.sin(), torch.arange(5))


def test_which_functions_are_looked_at() -> None:
    assert function_block("f", "apply_rotary_pos_emb", llama.apply_rotary_pos_emb) is not None
    assert function_block("f", "rotate", llama.apply_rotary_pos_emb) is None
    assert function_block("f", "apply_rotary_pos_emb", llama.rotate_half) is None
    assert function_block("f", "apply_rotary_pos_emb", 3) is None
    assert function_block("f", "apply_rotary_type", type) is None
