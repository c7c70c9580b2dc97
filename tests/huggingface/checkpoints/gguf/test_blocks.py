"""The codes of GGUF's types: values equal in every bit to gguf's own, and their sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from gguf import GGMLQuantizationType as Type

import coreai_onnx
from coreai_onnx.composites.few_bit_weights import dequantized
from coreai_onnx.huggingface.checkpoints.gguf.blocks import PACKED, packed_matrix
from coreai_onnx.huggingface.checkpoints.packed_matrices import PackedLinear
from coreai_onnx.model.weight_formats import BEFORE_BIAS
from tests.huggingface.checkpoints.gguf.random_blocks import parts_of, random_blocks
from tests.lower.checking import run_model
from tests.support.composite_calls import Case, call_model
from tests.support.tolerances import assert_close

SHARED = ("palette", "table", "layout", "scale_values")
"""Parts whose size does not grow with that of a weight."""


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_values_are_those_of_gguf_in_every_bit(kind: Type) -> None:
    data, expected = random_blocks(kind, 64, 512)
    matrix = packed_matrix(data, kind, 64)
    actual = dequantized(parts_of(matrix), matrix.bits, matrix.scale_bits, torch.float32)
    assert torch.equal(actual.reshape(64, 512).view(torch.int32), expected.view(torch.int32))
    stored = dict(PackedLinear(matrix).named_buffers())
    assert sum(x.nbytes for n, x in stored.items() if n not in SHARED) <= 1.05 * data.nbytes


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_body_and_kernel_multiply_by_these_values(kind: Type, kernels: Path) -> None:
    """By the identity matrix the results have the bits of the values; others are near."""
    data, weight = random_blocks(kind, 5, 256, seed=1)
    matrix = packed_matrix(data, kind, 5)
    parts = parts_of(matrix)
    inputs = [*parts[:BEFORE_BIAS], None, *parts[BEFORE_BIAS:]]
    largest = weight.abs().max()
    for x in (torch.eye(256), torch.randn(3, 256), torch.randn(40, 256)):
        model = call_model(
            Case("linear_nbits", (), matrix.sizes), [x, *inputs], dynamic=True, opset=23
        )
        for library in (None, kernels):
            (actual,) = run_model(model, [x, *inputs], library=library)
            if x.shape[0] == 256:
                assert np.array_equal(actual.T, weight.numpy()), library
            else:
                expected = (x.double() @ (weight / largest).double().T).float()
                assert_close(actual / largest.numpy(), expected)


@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q6_K, Type.IQ4_XS], ids=lambda kind: kind.name)
def test_rows_are_unpacked_in_chunks(kind: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = random_blocks(kind, 7, 256)
    whole = parts_of(packed_matrix(data, kind, 7))
    monkeypatch.setattr("coreai_onnx.huggingface.checkpoints.gguf.blocks._CHUNK", 600)
    for a, b in zip(whole, parts_of(packed_matrix(data, kind, 7)), strict=True):
        assert a is b or (a is not None and b is not None and torch.equal(a, b))


@pytest.mark.parametrize(
    "kind", [Type.MXFP4, Type.NVFP4, Type.IQ2_S, Type.TQ1_0], ids=lambda kind: kind.name
)
def test_onnxruntime_looks_constant_scales_up_once(
    kind: Type, kernels: Path, tmp_path: Path
) -> None:
    """When it opens the file, before it makes kernels, which then pack constants or blocks."""
    data, weight = random_blocks(kind, 64, 256)
    program = coreai_onnx.convert(PackedLinear(packed_matrix(data, kind, 64)), (torch.eye(256),))
    program.optimize(target="kernels")
    program.save(tmp_path / "model.onnx")
    for library, ops in ((None, {"MatMul", "Cast"}), (kernels, {"linear_nbits"})):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        if library is not None:
            options.register_custom_ops_library(str(library))
        session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options)
        (name,) = (value.name for value in session.get_inputs())
        (actual,) = session.run(None, {name: np.eye(256, dtype=np.float32)})
        assert np.array_equal(actual.T, weight.numpy())
        nodes = onnx.load(options.optimized_model_filepath).graph.node
        assert {node.op_type.partition(".")[0] for node in nodes} <= ops
