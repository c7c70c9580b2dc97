"""Mixtures of experts with few-bit weights become onnxruntime's op where it computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.composites import GatherMM
from coreai_onnx.export.compat.experts import experts_as_gather_mm
from coreai_onnx.passes.contrib.qmoe import contrib_qmoe
from coreai_onnx.program import OnnxProgram
from coreai_onnx.targets.contrib import contrib_needs
from tests.models.mixtures import MIXTURES
from tests.passes.rewriting import run, run_passes
from tests.support.tolerances import assert_close

EXPERTS, LANES, HIDDEN, CHOSEN = 6, 32, 48, 2
Route = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def softmax(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The router of Mixtral and Qwen3-MoE."""
    weights, chosen = torch.topk(logits.softmax(-1), CHOSEN)
    return weights / weights.sum(-1, keepdim=True), chosen


def unnormalized(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.topk(logits.softmax(-1), CHOSEN)


def sigmoid(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The router of DeepSeek-V3: a bias selects, and does not weigh."""
    scores = logits.sigmoid()
    chosen = torch.topk(scores + torch.linspace(0, 1, EXPERTS), CHOSEN)[1]
    weights = scores.gather(1, chosen)
    return weights / weights.sum(-1, keepdim=True) * 2.5, chosen


class Mixture(torch.nn.Module):
    def __init__(
        self,
        route: Route = softmax,
        gate: Any = torch.nn.functional.silu,
        hidden: int = HIDDEN,
    ) -> None:
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(EXPERTS, 2 * hidden, LANES) / 6)
        self.down = torch.nn.Parameter(torch.randn(EXPERTS, LANES, hidden) / 6)
        self.router = torch.nn.Linear(LANES, EXPERTS)
        self.product, self.route, self.gate = GatherMM(transpose_rhs=True), route, gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.route(self.router(x))
        up = self.product(x[:, None, None], self.up, rhs_indices=chosen)
        first, second = up.chunk(2, dim=-1)
        down = self.product(self.gate(first) * second, self.down, rhs_indices=chosen)
        return (down.squeeze(2) * weights.unsqueeze(-1)).sum(1)


def quantized(
    module: torch.nn.Module, bits: int = 4, group_size: int = 16, **options: Any
) -> OnnxProgram:
    dims = ({0: torch.export.Dim("tokens")},)
    program = coreai_onnx.convert(module.eval(), (torch.randn(5, LANES),), dynamic_shapes=dims)
    return program.quantize(bits, group_size, method="rtn", **options)


def feeds(tokens: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(tokens).standard_normal((tokens, LANES)).astype(np.float32)}


@pytest.mark.parametrize("route", [softmax, unnormalized, sigmoid])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("bits", "needs"), [(4, "1.25"), (2, "1.27")])
def test_blocks_are_onnxruntimes(route: Route, symmetric: bool, bits: int, needs: str) -> None:
    torch.manual_seed(0)
    program = quantized(Mixture(route), bits, symmetric=symmetric)
    before = {tokens: program.run(**feeds(tokens), kernels=False)[0] for tokens in (1, 5, 70)}
    program.optimize(target="contrib")
    (node,) = (n for n in program.model.graph if n.op_type == "QMoE")
    assert not program.composites()
    assert node.attributes["normalize_routing_weights"].value == int(route is softmax)
    assert ("accuracy_level" in node.attributes, contrib_needs(program.model)) == (False, needs)
    for tokens, wanted in before.items():
        assert_close(program.run(**feeds(tokens))[0], wanted)
    again = ir.from_proto(ir.to_proto(program.model))
    assert run_passes(again, [contrib_qmoe]).total == 0


@pytest.mark.parametrize(("hidden", "group_size"), [(64, 16), (96, 32)])
def test_exact_rows_of_2_bits(hidden: int, group_size: int) -> None:
    torch.manual_seed(0)
    program = quantized(Mixture(hidden=hidden), 2, group_size)
    before = program.run(**feeds(40), kernels=False)[0]
    program.optimize(target="contrib")
    assert "QMoE" in {node.op_type for node in program.model.graph}
    assert_close(program.run(**feeds(40))[0], before)


@pytest.mark.parametrize(("bits", "level"), [(4, 4), (8, None)])
def test_rounded_activations(bits: int, level: int | None) -> None:
    """onnxruntime rounds in other groups, so that the results are near and not equal."""
    torch.manual_seed(0)
    program = quantized(Mixture(), bits, activation_bits=8)
    before = program.run(**feeds(40), kernels=False)[0]
    program.optimize(target="contrib")
    (node,) = (n for n in program.model.graph if n.op_type == "QMoE")
    assert node.attributes.get_int("accuracy_level", None) == level
    assert contrib_needs(program.model) == ("1.31" if level else "1.25")
    difference = program.run(**feeds(40))[0] - before
    assert 10 * np.log10(np.square(before).sum() / np.square(difference).sum()) > 30


@pytest.mark.parametrize("minimum", ["1.23", "1.25", "1.27", "1.31"])
@pytest.mark.parametrize(
    ("bits", "rounding", "needs"), [(4, 0, "1.25"), (2, 0, "1.27"), (4, 8, "1.31")]
)
def test_a_file_needs_no_newer_onnxruntime_than_it_is_for(
    bits: int, rounding: int, needs: str, minimum: str
) -> None:
    program = quantized(Mixture(), bits, activation_bits=rounding)
    program.optimize(target="contrib", minimum_onnxruntime=minimum)
    assert contrib_needs(program.model) == (needs if needs <= minimum else "")


def test_no_tokens() -> None:
    program = quantized(Mixture(sigmoid)).optimize(target="contrib")
    assert program.run(**feeds(0))[0].shape == (0, LANES)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_language_models(name: str) -> None:
    architecture = next(a for a in MIXTURES if a.name == name)
    converter, module = coreai_onnx.TorchConverter(), architecture.module()
    with experts_as_gather_mm():
        converter.add_exported_program(architecture.export(module))
    program = converter.to_onnx().quantize(4, 16, method="rtn")
    given = architecture.arguments(2, 9)
    before = program.run(**given, kernels=False)[0]
    program.optimize(target="contrib")
    assert not any("gather_mm" in call for call in program.composites())
    assert sum(n.op_type == "QMoE" for n in program.model.graph) == (1 if "deep" in name else 2)
    assert_close(program.run(**given)[0], before)


PLAIN = {"bits": 4, "group_size": 16}


@pytest.mark.parametrize(
    ("module", "options", "reason"),
    [
        ({"gate": torch.tanh}, PLAIN, "the activation must be swiglu"),
        ({}, PLAIN | {"bits": 8}, "onnxruntime has no exact product with 8-bit experts"),
        ({}, PLAIN | {"bits": 3}, "onnxruntime has no exact product with 3-bit experts"),
        (
            {"hidden": 64},
            {"bits": 2, "group_size": 32},
            "onnxruntime rounds the activations of 2-bit rows of 64 values",
        ),
        ({}, PLAIN | {"group_size": 8}, "onnxruntime does not support this block size"),
        ({}, PLAIN | {"rules": {"up": {"bits": 2}}}, "the products have weights of different kinds"),
        (
            {"route": lambda logits: (logits[:, :2], logits[:, :2].abs().to(torch.int64) % 6)},
            PLAIN,
            "the experts of a token may be equal",
        ),
    ],
)  # fmt: skip
def test_others_stay(module: dict[str, Any], options: dict[str, Any], reason: str) -> None:
    program = quantized(Mixture(**module), **options)
    before = program.run(**feeds(5), kernels=False)[0]
    report = run_passes(program.model, [contrib_qmoe])
    assert report.total == 0
    assert reason in {miss.miss.reason for miss in report.near_misses}
    program.optimize(target="contrib")
    assert_close(program.run(**feeds(5), kernels=False)[0], before)


def test_a_palette_stays() -> None:
    dims = ({0: torch.export.Dim("tokens")},)
    program = coreai_onnx.convert(
        Mixture().eval(), (torch.randn(5, LANES),), dynamic_shapes=dims
    ).quantize(4, 16, method="palette")
    report = run_passes(program.model, [contrib_qmoe])
    reasons = {miss.miss.reason for miss in report.near_misses}
    assert reasons == {"the products must have one matrix per token and expert"}


def test_weights_that_are_inputs_stay() -> None:
    program = quantized(Mixture())
    graph = program.model.graph
    name = next(n for n in graph.initializers if n.endswith("up.codes"))
    value = graph.initializers.pop(name)
    codes = value.const_value.numpy()
    value.const_value = None
    graph.inputs.append(value)
    value.type, value.shape = ir.TensorType(ir.DataType.UINT8), ir.Shape(codes.shape)
    report = run_passes(program.model, [contrib_qmoe])
    assert "the weights are not constant" in {miss.miss.reason for miss in report.near_misses}
    run(program.model, feeds(2) | {name: codes})
