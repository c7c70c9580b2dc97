"""Experts: products with the chosen matrices, also in the format MXFP4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from coreai_onnx import convert
from coreai_onnx.composites.few_bit_weights import numbers_of
from coreai_onnx.huggingface.checkpoints import float_codes as mxfp4
from coreai_onnx.huggingface.checkpoints.experts import PackedExperts
from coreai_onnx.huggingface.checkpoints.settings import Checkpoint
from coreai_onnx.model.weight_formats import E2M1
from tests.support.tolerances import assert_close


class Experts(nn.Module):
    """What the packed experts read of those of transformers."""

    has_gate, has_bias, has_post_expert_norm, is_transposed = True, True, False, True

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        sizes = {"gate_up_proj": (hidden, 2 * inner), "down_proj": (inner, hidden)}
        for name, (inputs, outputs) in sizes.items():
            setattr(self, name, nn.Parameter(torch.zeros(3, inputs, outputs)))
            setattr(self, f"{name}_bias", nn.Parameter(torch.zeros(3, outputs)))

    def _apply_gate(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., ::2] * x[..., 1::2]


def written(folder: Path, **changes: Any) -> Checkpoint:
    torch.manual_seed(0)
    tensors = {}
    for name, (rows, groups) in {"gate_up_proj": (64, 2), "down_proj": (64, 1)}.items():
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (3, rows, groups, 16)).to(torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(124, 128, (3, rows, groups)).to(torch.uint8)
        tensors[f"{name}_bias"] = torch.randn(3, rows)
    tensors |= changes
    save_file({f"e.{name}": x for name, x in tensors.items()}, folder / "model.safetensors")
    return Checkpoint.of(folder)


def packed(tensors: Checkpoint) -> PackedExperts:
    """Return the experts of a checkpoint."""
    like, weights = Experts(64, 32), {}
    for name in ("gate_up_proj", "down_proj"):
        shape = getattr(like, name).shape
        weight = mxfp4.read(tensors, f"e.{name}", {}, (shape[2], shape[1]))
        assert weight is not None
        weights[name] = [weight]
        getattr(like, f"{name}_bias").data.copy_(tensors[f"e.{name}_bias"])
    return PackedExperts(like, weights).eval()


def test_chosen_experts(tmp_path: Path) -> None:
    tensors = written(tmp_path)
    experts = packed(tensors)
    x, weights = torch.randn(5, 64).double(), torch.rand(5, 2).double()
    chosen = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2], [1, 0]])

    def matrix(name: str, expert: int) -> torch.Tensor:
        blocks, scales = tensors[f"e.{name}_blocks"][expert], tensors[f"e.{name}_scales"][expert]
        codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
        grouped = numbers_of(E2M1).double()[codes.long()] * 2.0 ** (scales.unsqueeze(-1) - 127.0)
        return grouped.flatten(-2)

    wanted = torch.zeros(5, 64).double()
    for token in range(5):
        for place, expert in enumerate(chosen[token].tolist()):
            up = matrix("gate_up_proj", expert) @ x[token] + tensors["e.gate_up_proj_bias"][expert]
            inner = up[::2] * up[1::2]
            made = matrix("down_proj", expert) @ inner + tensors["e.down_proj_bias"][expert]
            wanted[token] += weights[token, place] * made
    assert_close(experts(x, chosen, weights).detach().numpy(), wanted.detach().numpy())


def test_codes_are_multiplied_and_never_dequantized_into_the_file(tmp_path: Path) -> None:
    tensors = written(tmp_path)
    experts = packed(tensors)

    def given(tokens: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(tokens, 64), torch.randint(0, 3, (tokens, 2)), torch.rand(tokens, 2)

    dims = ({0: torch.export.Dim("tokens")},) * 3
    program = convert(experts, given(5), dynamic_shapes=dims)
    assert program.composites() == {"ai.coreai::gather_mm_nbits": 2}
    constants = {n: v.const_value.numpy() for n, v in program.model.graph.initializers.items()}
    for name in ("gate_up_proj", "down_proj"):
        np.testing.assert_array_equal(constants[f"{name}_codes"], tensors[f"e.{name}_blocks"])
    assert not [n for n, x in constants.items() if x.dtype == np.float32 and x.size >= 3 * 64 * 32]
    again = given(40)
    expected = experts(*again)
    largest = expected.abs().max()  # 16,000: sums, in any order, are exact to a step of that
    for kernels in (False, True):
        found = torch.from_numpy(program.run(*again, kernels=kernels)[0])
        assert_close(found / largest, expected / largest)
