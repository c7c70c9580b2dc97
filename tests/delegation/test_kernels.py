"""The native kernels as a backend: what they compute, by composite and dtype."""

from __future__ import annotations

import json

import pytest
import torch
from torch.export import export

from coreai_onnx import session
from coreai_onnx.delegation import KernelPartitioner, delegates_of, to_edge
from coreai_onnx.delegation.kernels import KERNELS
from tests.support.tolerances import assert_close


class Block(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8, dtype=dtype)
        self.scale = torch.nn.RMSNorm(8, dtype=dtype)

    def forward(self, x):
        y = self.scale(self.norm(x))
        z = torch.nn.functional.gelu(y).sin()
        return torch.nn.functional.scaled_dot_product_attention(z, z, z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_part_runs_on_the_kernels_in_every_dtype(dtype: torch.dtype) -> None:
    module, x = Block(dtype), torch.randn(1, 2, 3, 8, dtype=dtype)
    edge = to_edge(export(module, (x,)))
    made = edge.to_backend(KernelPartitioner())
    norms, attention = delegates_of(made.exported_program())
    name = str(dtype).removeprefix("torch.")
    assert json.loads(norms.processed_bytes) == [
        {"composite": "layer_norm", "dtype": name},
        {"composite": "rms_norm", "dtype": name},
    ]
    assert b"scaled_dot_product_attention" in attention.processed_bytes
    whole, parts = edge.finish().onnx_program, made.finish().onnx_program
    for kernels in (True, False):
        expected = session(whole, kernels=kernels).run(x)[0]
        assert_close(session(parts, kernels=kernels).run(x)[0], expected)


def test_kernels_run_in_place_of_the_bodies_inside_parts() -> None:
    x = torch.randn(1, 2, 3, 8)
    finished = to_edge(export(Block(torch.float32), (x,))).to_backend(KernelPartitioner()).finish()
    bodies = [f for f in finished.onnx_program.model.functions.values() if f.domain == KERNELS]
    assert {n.op_type for f in bodies for n in f if n.domain == "ai.coreai"} == {
        "layer_norm",
        "rms_norm",
        "scaled_dot_product_attention",
    }


def test_reasons() -> None:
    x = torch.randn(1, 2, 3, 8)
    program = to_edge(export(Block(torch.float32), (x,))).exported_program()
    assert KernelPartitioner().partition(program).unsupported == {
        "gelu": "the composite gelu has no kernel",
        "sin": "no composite: it becomes Sin",
    }
