"""Whole models: dynamic shapes, two precisions, undecomposed and decomposed, bodies and kernels."""

from __future__ import annotations

import pytest
import torch

import coreai_onnx
from coreai_onnx import TorchConverter, get_decomp_table
from coreai_onnx.runtime import kernels_built
from tests.models.architectures import FIRST_LIGHT, Architecture
from tests.tolerances import assert_close

SIZES = ((2, 9), (1, 5), (3, 17))


def convert(architecture: Architecture, dtype: torch.dtype, *, decompose: bool, opset: int) -> tuple[
    torch.nn.Module, coreai_onnx.OnnxProgram
]:
    module = architecture.module(dtype)
    with torch.no_grad():
        program = torch.export.export(
            module, architecture.arguments(*SIZES[0], dtype), dynamic_shapes=architecture.dynamic
        )
        if decompose:
            program = program.run_decompositions(get_decomp_table())
    converter = TorchConverter().add_exported_program(program)
    return module, converter.to_onnx(opset_version=opset).optimize()


@pytest.mark.parametrize(
    ("decompose", "opset"), [(False, 23), (True, 18)], ids=["undecomposed-23", "decomposed-18"]
)
@pytest.mark.parametrize("architecture", FIRST_LIGHT, ids=lambda a: a.name)
def test_float32_agrees_with_torch(architecture: Architecture, decompose: bool, opset: int) -> None:
    module, program = convert(architecture, torch.float32, decompose=decompose, opset=opset)
    for batch, length in SIZES:
        arguments = architecture.arguments(batch, length, torch.float32)
        with torch.no_grad():
            expected = module(*arguments)
        for kernels in {False, kernels_built()}:
            (actual,) = program.run(*arguments, kernels=kernels)
            assert_close(actual, expected)


@pytest.mark.parametrize("architecture", FIRST_LIGHT, ids=lambda a: a.name)
def test_float16_agrees_with_torch(architecture: Architecture) -> None:
    module, program = convert(architecture, torch.float16, decompose=False, opset=23)
    for batch, length in SIZES:
        arguments = architecture.arguments(batch, length, torch.float16)
        with torch.no_grad():
            expected = module(*arguments)
        for kernels in {False, kernels_built()}:
            (actual,) = program.run(*arguments, kernels=kernels)
            assert_close(actual, expected, exception="half_model")


@pytest.mark.parametrize(
    ("name", "composites"),
    [
        ("bert", {"scaled_dot_product_attention": 2, "layer_norm": 5}),
        ("gpt2", {"scaled_dot_product_attention": 2, "layer_norm": 5}),
        ("llama", {"scaled_dot_product_attention": 2}),
    ],
)
def test_composites_are_kept(name: str, composites: dict[str, int]) -> None:
    architecture = next(a for a in FIRST_LIGHT if a.name == name)
    _, program = convert(architecture, torch.float32, decompose=True, opset=23)
    found: dict[str, int] = {}
    for op, count in program.composites().items():
        base = op.removeprefix("ai.coreai::").partition(".")[0]
        found[base] = found.get(base, 0) + count
    assert found == composites
