"""Files of opset 21 run in older onnxruntimes, with the numbers of the newest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import coreai_onnx
from coreai_onnx import ExternalizeSpec
from coreai_onnx.composites import (
    COMPOSITES,
    SDPA,
    GatedDeltaUpdate,
    GatherMM,
    RMSNorm,
    RMSNormImpl,
    RoPE,
)
from coreai_onnx.program import OnnxProgram
from tests.compat import older_onnxruntime
from tests.custom_ops.single_op import run_op, single_op_model
from tests.support.tolerances import assert_close

VERSIONS = ["1.21.1", "1.24.4", "1.26.0", "1.28.0"]
pytestmark = pytest.mark.slow


class Layer(torch.nn.Module):
    """A decoder layer with grouped heads: norm, rotary attention, norm, MLP."""

    def __init__(self, *, window: int = 0) -> None:
        super().__init__()
        self.before, self.after = RMSNorm(16), RMSNorm(16)
        self.qkv, self.out = torch.nn.Linear(16, 32), torch.nn.Linear(16, 16)
        self.rope, self.attention = RoPE(), SDPA(is_causal=True, window_size=window)
        self.mlp = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.before(x)).unflatten(-1, (8, 4)).transpose(1, 2)
        q, k, v = heads[:, :4], heads[:, 4:6], heads[:, 6:]
        mixed = self.attention(self.rope(q), self.rope(k), v)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + F.silu(self.mlp(self.after(x)))


class Decoder(torch.nn.Module):
    """Causal and windowed layers: two bodies of one composite, and nested functions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(Layer(), Layer(window=3), Layer())
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layers(x))


class Cache(torch.nn.Module):
    """Attention over what it has seen: state inside a function, inside a function."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.qkv = RMSNorm(16), SDPA(), torch.nn.Linear(16, 48)
        self.register_buffer("keys", torch.zeros(2, 2, 8, 8))
        self.register_buffer("values", torch.zeros(2, 2, 8, 8))
        self.register_buffer("seen", torch.zeros(8, dtype=torch.bool))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (6, 8)).transpose(1, 2).chunk(3, dim=1)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        self.seen.index_fill_(0, at, True)
        mixed = self.attention(q, self.keys, self.values, self.seen[None, None, None])
        return x + mixed.transpose(1, 2).flatten(-2)


class Caches(torch.nn.Module):
    """Two of them, in one function of the whole model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Cache(), Cache()

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, at), at)


class Masked(torch.nn.Module):
    """Attention with a float mask, and torch's own without one."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, mask) + F.scaled_dot_product_attention(
            x, x, x
        )


class Mixture(torch.nn.Module):
    """A matrix per token, then a state along the tokens: loops and scans inside functions."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.Parameter(torch.randn(3, 16, 16) * 0.3)
        self.product, self.update = GatherMM(transpose_rhs=True), GatedDeltaUpdate()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.topk(x[..., :3], 2).indices
        mixed = self.product(x[..., None, None, :], self.experts, rhs_indices=chosen).sum(2)
        value = mixed.squeeze(2).unflatten(-1, (2, 8)).transpose(1, 2)
        query, key = value[:, :1], value[:, 1:]
        gate = torch.sigmoid(value.mean(-1))
        return self.update(query, key, value, -gate, gate)


SPECS: list[ExternalizeSpec | type] = [
    ExternalizeSpec(RMSNormImpl, "rms_norm"),
    ExternalizeSpec(RoPE, "rope"),
    ExternalizeSpec(SDPA, "scaled_dot_product_attention"),
]


def models() -> dict[str, tuple[OnnxProgram, list[torch.Tensor]]]:
    torch.manual_seed(0)
    x, decoder = torch.randn(2, 6, 16), Decoder().eval()
    dims = {"x": {0: Dim("batch"), 1: Dim("seq")}}
    heads, mask = torch.randn(1, 2, 5, 8), torch.randn(5, 5)
    step = torch.randn(2, 2, 16), torch.tensor([3, 5])

    def convert(model: torch.nn.Module, args: Any, *specs: Any, **options: Any) -> OnnxProgram:
        externalize = list(specs) or None
        return coreai_onnx.convert(
            model, args, externalize_modules=externalize, opset_version=21, **options
        )

    return {
        "flat": (convert(decoder, (x,), *SPECS, dynamic_shapes=dims), [x]),
        "nested": (convert(decoder, (x,), *SPECS, Layer, dynamic_shapes=dims), [x]),
        "whole": (convert(decoder, (x,), *SPECS, Layer, Decoder, dynamic_shapes=dims), [x]),
        "stateful": (convert(Caches(), step, SPECS[0], SPECS[2], Cache, Caches), list(step)),
        "mixture": (convert(Mixture(), (x,), dynamic_shapes=dims), [x]),
        "masked": (convert(Masked(), (heads, mask)), [heads, mask]),
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Files of all models and their inputs, and the programs."""
    folder, programs = tmp_path_factory.mktemp("compat"), models()
    for name, (program, inputs) in programs.items():
        program.save(folder / f"{name}.onnx")
        graph = program.model.graph
        names = [v.name for v in graph.inputs if v.name not in graph.initializers]
        arrays = dict(zip(names, (t.numpy() for t in inputs), strict=True))
        np.savez(folder / f"{name}.inputs.npz", **arrays)
    return folder, programs


def test_files_are_ir_10_without_overloads(saved: tuple[Path, dict[str, Any]]) -> None:
    for name, (program, _) in saved[1].items():
        proto = program.to_proto()
        assert proto.ir_version == 10, name
        assert {i.domain: i.version for i in proto.opset_import}[""] == 21
        nodes = [n for body in (proto.graph, *proto.functions) for n in body.node]
        assert proto.functions
        assert not [x.name for x in (*proto.functions, *nodes) if x.overload]
    assert [n.op_type for n in saved[1]["whole"][0].model.graph] == ["Decoder"]
    assert [n.op_type for n in saved[1]["stateful"][0].model.graph] == ["Caches"]
    functions = {f.name for f in saved[1]["nested"][0].model.functions.values()}
    assert {
        "Layer",
        "Layer.2",
        "scaled_dot_product_attention.causal",
        "scaled_dot_product_attention.causal_window",
    } <= functions


@pytest.mark.parametrize("version", VERSIONS)
def test_bodies_give_the_numbers_of_the_newest(
    saved: tuple[Path, dict[str, Any]], version: str
) -> None:
    folder, programs = saved
    older = older_onnxruntime.run(version, folder, list(programs), None)
    for name, (program, inputs) in programs.items():
        newest = program.run(*inputs, kernels=False)
        assert_close(older[name][: len(newest)], list(newest), message=name)


@pytest.mark.parametrize("version", VERSIONS)
def test_kernels_give_the_numbers_of_the_newest(
    saved: tuple[Path, dict[str, Any]], version: str, kernels: Path
) -> None:
    folder, programs = saved
    older = older_onnxruntime.run(version, folder, list(programs), kernels)
    for name, (program, inputs) in programs.items():
        newest = program.run(*inputs, kernels=True)
        assert_close(older[name][: len(newest)], list(newest), message=name)


def _calls() -> dict[str, list[torch.Tensor]]:
    """Inputs of every op that has a second output."""
    torch.manual_seed(1)
    rows, tokens, gate = torch.randn(2, 8), torch.randn(1, 2, 3, 4), torch.rand(1, 2, 3)
    return {
        "skip_rms_norm": [rows, rows],
        "skip_layer_norm": [rows, rows],
        "gated_delta_update": [tokens, tokens, tokens, -gate, gate],
    }


@pytest.mark.parametrize("version", [*VERSIONS, "1.27.0"])
def test_a_second_output_may_go_unused(tmp_path: Path, version: str, kernels: Path) -> None:
    calls = _calls()
    assert set(calls) == {name for name, op in COMPOSITES.items() if len(op.outputs) > 1}
    for op, inputs in calls.items():
        onnx.save(single_op_model(op, inputs, {}), tmp_path / f"{op}.onnx")
        feeds = {f"in{i}": x.numpy() for i, x in enumerate(inputs)}
        np.savez(tmp_path / f"{op}.inputs.npz", **feeds)
    older = older_onnxruntime.run(version, tmp_path, list(calls), kernels)
    for op, inputs in calls.items():
        (output,) = older[op]
        assert_close(torch.from_numpy(output), run_op(kernels, op, inputs), message=op)
