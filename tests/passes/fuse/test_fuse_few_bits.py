"""Quantized weights of every size become codes; products of two quantized factors stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.fuse.fuse_few_bits import fuse_few_bits
from tests.lower.checking import open_model, run_session
from tests.passes.quantized_products import COLUMNS, INT4, RNG, ROWS, UINT4, linear
from tests.passes.rewriting import optimize_for, run, run_passes, same_bytes
from tests.support.tolerances import assert_close


@pytest.mark.parametrize(
    ("kind", "block", "ops", "more", "op_types"),
    [
        (INT4, 32, ROWS, {"zeros": False}, ["linear_nbits"]),
        (INT4, 32, ROWS, {}, ["linear_nbits.zero_points"]),
        (UINT4, 16, COLUMNS, {"zeros": False}, ["linear_nbits.zero_points"]),
        (np.int8, 32, ROWS, {"limits": (-128, 128)}, ["linear_nbits.bits8_zero_points"]),
        (np.int8, 64, ROWS, {"limits": (-4, 4), "zeros": False}, ["linear_nbits.bits3"]),
        (np.uint8, 8, COLUMNS, {"limits": (100, 104)}, ["linear_nbits.bits2_zero_points"]),
        (INT4, 96, COLUMNS, {"size": (16, 96), "zeros": False}, ["linear_nbits"]),
        (INT4, 32, ("dequantized", "Gemm"), {"bias": (48,), "size": (48, 96), "zeros": False},
         ["linear_nbits", "Add"]),
    ],
)  # fmt: skip
def test_weights_become_codes(
    kind: type, block: int, ops: Sequence[str], more: dict[str, Any], op_types: list[str],
    kernels: Path,
) -> None:  # fmt: skip
    model = linear(kind, block, ops, **more)
    before = ir.from_proto(ir.to_proto(model))
    report = run_passes(model, [fuse_few_bits, remove_dead_code])
    assert report.counts["fuse_few_bits"] == 1
    assert [node.op_type for node in model.graph] == op_types
    shape = (5, model.graph.inputs[0].shape[-1])
    # Weights are up to 341, and sums are in another order on tiles: keep them of ordinary size.
    x = RNG.standard_normal(shape if ops[-1] == "Gemm" else (2, *shape)) / 128
    feeds = {"x": x.astype(np.float32)}
    expected = run(before, feeds)
    assert_close(run(model, feeds), expected)
    model.functions.clear()
    session = open_model(model, library=kernels)
    assert_close(run_session(session, [torch.from_numpy(feeds["x"])]), expected)


@pytest.mark.parametrize(
    ("block", "ops", "more", "reason"),
    [
        (48, ROWS, {"size": (16, 64)}, "the last group of a row is shorter"),
        (16, ROWS, {"size": (16, 16), "axis": 0}, "groups must lie along the input features"),
        (32, ("dequantized", "Gemm"), {"alpha": 0.5}, "the product is scaled or transposed"),
    ],
)
def test_others_stay(block: int, ops: Sequence[str], more: dict[str, Any], reason: str) -> None:
    model = linear(INT4, block, ops, **more)
    before = ir.from_proto(ir.to_proto(model))
    report = run_passes(model, [fuse_few_bits])
    assert report.total == 0
    assert same_bytes(model, before)
    assert [m.miss.reason for m in report.near_misses] == [reason]


def test_a_quantized_input_stays_for_onnxruntime() -> None:
    model = linear(np.int8, 64, ROWS, zeros=False)
    x = model.graph.inputs[0]
    product = next(node for node in model.graph if node.op_type == "MatMul")
    scale = ir.Value(name="one", const_value=ir.tensor(np.float32(0.1), name="one"))
    model.graph.register_initializer(scale)
    quantized = ir.node("QuantizeLinear", [x, scale])
    back = ir.node("DequantizeLinear", [quantized.outputs[0], scale])
    for node, name in ((quantized, "xq"), (back, "xd")):
        node.outputs[0].name = name
        model.graph.insert_before(product, node)
    back.outputs[0].type, back.outputs[0].shape = x.type, x.shape
    product.replace_input_with(0, back.outputs[0])
    assert run_passes(model, [fuse_few_bits]).total == 0


def test_only_the_kernels_target_has_it() -> None:
    for target, count in (("kernels", 1), ("onnxruntime", 0), ("contrib", 0)):
        model = linear(INT4, 32, ROWS)
        assert optimize_for(model, target).counts.get("fuse_few_bits", 0) == count  # type: ignore[arg-type]


@pytest.mark.parametrize("rounded", [0, 8])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_between_casts(dtype: torch.dtype, bias: bool, rounded: int) -> None:
    """A model in half precision is quantized in float32; the product rounds its result itself."""
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(0)).to(dtype)
    program = coreai_onnx.convert(torch.nn.Linear(128, 96, bias=bias).to(dtype), (x,))
    program.quantize(bits=4, activation_bits=rounded)
    expected = program.run(x, kernels=False)[0]
    program.optimize(target="kernels")
    words = ["rounded"] * (rounded == 8) + ["zero_points"] + ["bias"] * bias
    (node,) = program.model.graph
    assert node.op_type == f"linear_nbits.{'_'.join(words)}"
    assert program.session().inputs[0].dtype == str(dtype).removeprefix("torch.")
    for kernels in (True, False):
        assert_close(program.run(x, kernels=kernels)[0], expected)
