"""Codes and zero points in the form of onnxruntime's ops, and products that become MatMulNBits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.model.packed_codes import pack_rows
from coreai_onnx.passes.contrib.few_bits import (
    become_matmul_nbits,
    contrib_linear_nbits,
    device_linear_nbits,
    packed_zeros,
)
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import optimize_for, parse, run, run_passes
from tests.support.tolerances import assert_close
from tools.bench.composite_model import composite_model


@pytest.mark.parametrize("bits", [4, 2])
@pytest.mark.parametrize("groups", [1, 3, 4, 8])
def test_zero_points_of_a_function_are_packed_by_ops(bits: int, groups: int) -> None:
    model = parse(f"main (uint8[5, {groups}] z) => (uint8[5, n] y) {{ y = Identity (z) }}")

    def pack(graph: gs.Graph, _why: Why) -> int:
        (node,) = graph.nodes
        edit = Edit(graph)
        if node.op != "Identity" or node.inputs[0] is not graph.inputs[0]:
            return 0
        edit.become(node, "Identity", [packed_zeros(edit, node, node.inputs[0], bits, "z")])
        edit.finish()
        return 1

    def once(graph: gs.Graph, why: Why) -> int:
        return pack(graph, why) if len(graph.nodes) == 1 else 0

    run_passes(model, [once])
    zeros = np.random.default_rng(0).integers(0, 1 << bits, (5, groups)).astype(np.uint8)
    assert np.array_equal(run(model, {"z": zeros})[0], pack_rows(zeros, bits))


NAME = "linear_nbits"


def call(
    bits: int,
    rounding: int = 0,
    *,
    group: int = 32,
    dtype: torch.dtype = torch.float32,
    **more: Any,
) -> tuple[ir.Model, list[torch.Tensor | None]]:
    """Return a model of a call with a constant weight, 96 × 10, and its inputs."""
    generator = torch.Generator().manual_seed(bits)
    groups = 96 // group
    codes = torch.randint(0, 256, (10, groups, group * bits // 8), generator=generator)
    zeros = torch.randint(0, 1 << bits, (10, groups), generator=generator)
    inputs: list[torch.Tensor | None] = [
        torch.randn(5, 96, generator=generator).to(dtype),
        codes.to(torch.uint8),
        (torch.rand(10, groups, generator=generator) / 64).half(),
        zeros.to(more.get("zeros", torch.uint8)) if "zeros" in more else None,
        torch.randn(1 << bits, generator=generator).half() if "palette" in more else None,
        torch.randn(10, generator=generator).to(dtype) if "bias" in more else None,
    ]
    attributes = {"bits": bits, "group_size": group, "activation_bits": rounding}
    constants = range(1, len(inputs))
    return ir.from_proto(composite_model(NAME, inputs, attributes, constants=constants)), inputs


@pytest.mark.parametrize("bias", [{}, {"bias": True}])
@pytest.mark.parametrize("zeros", [{}, {"zeros": torch.uint8}])
@pytest.mark.parametrize(("bits", "rounding"), [(4, 0), (4, 8), (8, 8)])
def test_calls_are_onnxruntimes(
    bits: int, rounding: int, zeros: dict[str, Any], bias: dict[str, Any]
) -> None:
    model, inputs = call(bits, rounding, **zeros, **bias)
    x = inputs[0]
    assert x is not None
    feeds = {"input": x.numpy()}
    before = run(model, feeds)
    report = optimize_for(model, "contrib")
    assert report.counts["contrib_linear_nbits"] == 1
    (node,) = model.graph  # few scales are cast by the optimizer
    assert (node.domain, node.op_type) == ("com.microsoft", "MatMulNBits")
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    assert attributes.get("accuracy_level", 0) == (4 if rounding else 0)
    assert_close(run(model, feeds), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_calls_of_devices(dtype: torch.dtype) -> None:
    model, inputs = call(4, dtype=dtype, bias=True)
    x = inputs[0]
    assert x is not None
    before = run(model, {"input": x.numpy()})
    assert run_passes(model, [device_linear_nbits]).counts["device_linear_nbits"] == 1
    cast = ["Cast"] if dtype == torch.float32 else []  # of the scales
    assert [node.op_type for node in model.graph] == [*cast, "MatMulNBits"]
    assert_close(run(model, {"input": x.numpy()}), before)


def test_many_scales_keep_their_dtype_in_the_file() -> None:
    x = torch.randn(2, 512, generator=torch.Generator().manual_seed(0))
    program = coreai_onnx.convert(torch.nn.Linear(512, 512, bias=False).eval(), (x,))
    program.quantize(bits=4, symmetric=True)
    before = program.run(x, kernels=False)[0]
    program.optimize(target="contrib")
    cast, node = program.model.graph
    assert (cast.op_type, node.op_type) == ("Cast", "MatMulNBits")
    assert node.inputs[2] is cast.outputs[0]
    held = program.model.graph.initializers.values()
    size = sum(v.const_value.nbytes for v in held if v.const_value is not None)
    assert size < 0.57 * 512 * 512  # half a byte for a code, and two bytes for 32 of them
    assert_close(program.run(x)[0], before)


@pytest.mark.parametrize(
    ("bits", "more", "reason"),
    [
        (8, {}, "onnxruntime dequantizes 8-bit weights at each run"),
        (2, {}, "onnxruntime dequantizes 2-bit weights at each run"),
        (3, {"rounding": 8}, "onnxruntime dequantizes 3-bit weights at each run"),
        (4, {"group": 48}, "onnxruntime does not support this block size"),
        (4, {"palette": True}, "the op does not support a palette"),
        (
            4,
            {"zeros": torch.float32},
            "zero points must be integers that fit into the bits of a code",
        ),
        (4, {"dtype": torch.float16}, "the dtype is not float32"),
    ],
)
def test_others_stay(bits: int, more: dict[str, Any], reason: str) -> None:
    model, _ = call(bits, more.pop("rounding", 0), **more)
    report = run_passes(model, [contrib_linear_nbits])
    assert report.total == 0
    assert [m.miss.reason for m in report.near_misses] == [reason]
    assert np.all([node.domain == "ai.coreai" for node in model.graph])


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(96, 160), torch.nn.Linear(160, 96, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.relu(self.up(x)))


@pytest.mark.parametrize(
    "options", [{}, {"symmetric": True}, {"activation_bits": 8}, {"bits": 8, "activation_bits": 8}]
)
def test_in_a_function_that_gets_the_weights(options: dict[str, Any]) -> None:
    x = torch.randn(2, 96, generator=torch.Generator().manual_seed(0))
    layers = torch.nn.Sequential(Layer(), Layer()).eval()
    program = coreai_onnx.convert(layers, (x,), externalize_modules=[Layer])
    program.quantize(**options)
    before = program.run(x, kernels=False)[0]
    program.optimize(target="contrib")
    assert [node.op_type for node in program.model.graph] == ["Layer", "Layer"]
    (function,) = program.model.functions.values()
    assert [n.op_type for n in function].count("MatMulNBits") == 2
    assert_close(program.run(x)[0], before)


def test_a_function_that_is_called_with_a_computed_weight_stays() -> None:
    model, _ = call(4)
    text = """<ir_version: 10, opset_import: ["": 21, "u": 1, "ai.coreai": 1]>
    main (float[5, 96] x, uint8[10, 3, 16] codes, float[10, 3] scales) => (float[5, 10] y) {
      y = u.layer (x, codes, scales)
    }
    <domain: "u", opset_import: ["": 21, "ai.coreai": 1]> layer (x, codes, scales) => (y) {
      y = ai.coreai.linear_nbits <bits = 4, group_size = 32> (x, codes, scales)
    }"""
    outer = ir.from_onnx_text(text)
    outer.functions.update(model.functions)
    report = run_passes(outer, [contrib_linear_nbits])
    assert report.total == 0
    assert [m.miss.reason for m in report.near_misses] == ["the weight is not constant"]


@pytest.mark.parametrize(("tensors", "absent"), [(3, 2), (4, 1)])
def test_the_bias_is_the_sixth_input(tensors: int, absent: int) -> None:
    given = [gs.Variable(f"x{i}", np.float32) for i in range(tensors)]
    bias, y = gs.Variable("b", np.float32), gs.Variable("y", np.float32)
    node = gs.Node("MatMul", inputs=given[:2], outputs=[y])
    edit = Edit(gs.Graph([node], inputs=[*given, bias], outputs=[y]))
    sizes = {"K": 64, "N": 8, "bits": 4, "block_size": 32}
    become_matmul_nbits(edit, node, given, bias, sizes | {"accuracy_level": 4})
    assert [tensor.name for tensor in node.inputs] == [
        *(t.name for t in given),
        *[""] * absent,
        "b",
    ]
    assert (node.domain, node.op) == ("com.microsoft", "MatMulNBits")
    assert node.attrs == sizes | {"accuracy_level": 4}
    become_matmul_nbits(edit, node, given, None, sizes)
    assert len(node.inputs) == tensors
