"""Norms by structure and by numbers: of transformers, of a user, and what only looks like one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.qwen3_next.modeling_qwen3_next import (
    Qwen3NextRMSNorm,
    Qwen3NextRMSNormGated,
)
from transformers.models.t5.modeling_t5 import T5LayerNorm

from coreai_onnx.export.recognize.norms import norm_block
from tests.support.tolerances import assert_close

Tensor = torch.Tensor


class Own(torch.nn.Module):
    """A norm a user may write; what it computes is given."""

    def __init__(self, compute: Any, epsilon: float = 1e-5, weights: tuple[str, ...] = ("g",)):
        super().__init__()
        for name in weights:
            self.register_parameter(name, torch.nn.Parameter(torch.rand(8)))
        self.epsilon, self.compute = epsilon, compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


def rms(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


NORMS = [
    (LlamaRMSNorm(8), "rms_norm"),
    (GptOssRMSNorm(8), "rms_norm"),
    (Gemma2RMSNorm(8), "rms_norm"),
    (T5LayerNorm(8), "rms_norm"),
    (Qwen3NextRMSNorm(8), "rms_norm"),
    (Qwen3NextRMSNormGated(8), "rms_norm"),
    (MambaRMSNormGated(8, group_size=8), "rms_norm"),
    (CohereLayerNorm(8), "layer_norm"),
    (Own(lambda m, x: rms(x, m.epsilon) * m.g), "rms_norm"),
    (Own(lambda m, x: rms(x, m.epsilon) * (1 + m.g)), "rms_norm"),
    (Own(lambda m, x: rms(x, m.epsilon), weights=()), "rms_norm"),
    (Own(lambda m, x: F.layer_norm(x, (8,), m.g, m.beta, m.epsilon), weights=("g", "beta")),
     "layer_norm"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "composite"), NORMS, ids=[type(m).__name__ for m, _ in NORMS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_norms(module: torch.nn.Module, composite: str, dtype: torch.dtype) -> None:
    module = copy.deepcopy(module).to(dtype)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    block = norm_block("norm", module)
    assert block is not None
    assert (block.composite, block.reason) == (composite, "")
    gated = "Gated" in type(module).__name__
    inputs = [torch.randn(2, 5, 8).to(next(iter(module.parameters()), torch.ones(1)).dtype)]
    inputs += [torch.randn(2, 5, 8).to(dtype)] if gated else []
    with torch.no_grad():
        expected = module(*inputs)
        if isinstance(module, Own) and dtype != torch.float32:  # computes in low precision
            block.check(expected, inputs, {})
        else:
            assert_close(block.replacement(*inputs), expected)
    assert not block.reason
    assert block.meaning == norm_block("other", module).meaning  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (lambda m, x: rms(x, m.epsilon) * m.g + x, "the result differs"),
        (lambda m, x: rms(x, 10 * m.epsilon) * m.g, "the result differs"),
        (lambda m, x: (rms(x, m.epsilon) * m.g).clamp(-2, 2), "the result differs"),
        (lambda m, x: rms(x, m.epsilon) * m.g.abs(), "the result differs"),
        (lambda m, x: x / (x.norm(dim=-1, keepdim=True) + m.epsilon) * m.g, "the result differs"),
        (lambda m, x: (rms(x, m.epsilon) * m.g).double(), "gives torch.float32"),
        (lambda m, x: rms(x, m.epsilon) @ m.missing, "fails on random inputs"),
    ],
)
def test_what_only_looks_like_a_norm_is_refused(compute: Any, reason: str) -> None:
    block = norm_block("norm", Own(compute))
    assert block is not None
    assert reason in block.reason


def test_what_does_not_look_like_one_is_no_block() -> None:
    class Parent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.eps, self.child = 1e-5, torch.nn.ReLU()

    class Buffer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.eps = 1e-5
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            return x

    class Many(Own):
        def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            return x

    class Option(Own):
        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            return x

    without_eps = Own(lambda m, x: x)
    del without_eps.epsilon
    wide = Own(lambda m, x: x)
    wide.g = torch.nn.Parameter(torch.ones(8, 2))
    for module in (
        torch.nn.LayerNorm(8), torch.nn.RMSNorm(8), torch.nn.Linear(8, 8), torch.nn.ReLU(),
        Parent(), Buffer(), Many(None), Option(None), without_eps, wide,
        Own(None, weights=("a", "b", "c")),
    ):  # fmt: skip
        assert norm_block("module", module) is None, module
