"""Whole models: dynamic shapes, two precisions, both roads, bodies, kernels, contrib's ops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from coreai_onnx import OnnxProgram, TorchConverter, from_python, get_decomp_table
from coreai_onnx.debugging.diff.model_diff import diff_models
from coreai_onnx.passes import Target
from coreai_onnx.runtime import kernels_built
from tests.models.architecture import Architecture, expected_outputs
from tests.models.zoo import ARCHITECTURES, named
from tests.passes.rewriting import optimize_for
from tests.support.tolerances import assert_close

DECOMPOSED = """
    bert deberta_v2 modernbert gpt2 llama gemma3_text gpt_oss deepseek_v3 qwen3_next mamba2 t5
    whisper vit swin convnext resnet segformer detr clip
""".split()
"""One of each family; the others differ from it in nothing that torch decomposes."""
HALF = [named(name) for name in ("bert", "gpt2", "llama", "resnet")]


def converted(
    exported: torch.export.ExportedProgram, opset: int, target: Target = "onnxruntime"
) -> OnnxProgram:
    """Convert and optimize; a second run of the passes must find nothing to do."""
    program = TorchConverter().add_exported_program(exported).to_onnx(opset_version=opset)
    program.optimize(target=target)
    assert optimize_for(program.model, target).total == 0
    return program


def called(program: OnnxProgram) -> dict[str, int]:
    """Return how often each composite is called, its variants together."""
    found: dict[str, int] = {}
    for op, count in program.composites().items():
        base = op.removeprefix("ai.coreai::").partition(".")[0]
        found[base] = found.get(base, 0) + count
    return found


def check(
    program: OnnxProgram,
    architecture: Architecture,
    module: torch.nn.Module,
    dtype: torch.dtype = torch.float32,
    exception: str | None = None,
) -> None:
    """Hold a program to its module at every size, on the bodies and on the kernels."""
    for size in architecture.sizes:
        arguments = architecture.arguments(*size, dtype)
        expected = expected_outputs(module, arguments)
        assert all(torch.isfinite(e).all() and e.std() > 1e-3 for e in expected)
        for kernels in sorted({False, kernels_built()}):
            actual = program.run(**arguments, kernels=kernels)
            where = f"batch and length {size}, kernels={kernels}"
            assert_close(list(actual), expected, exception=exception, message=where)


def check_source(program: OnnxProgram, folder: Path) -> None:
    """The program as Python builds the same program, and is formatted as ruff does it."""
    again = from_python(program.to_python(folder / "written"))
    diff = diff_models(program, again)
    assert diff.same, str(diff)
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", "written"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_float32_agrees_with_torch_on_both_roads(
    architecture: Architecture, tmp_path: Path
) -> None:
    module = architecture.module()
    exported = architecture.export(module)
    second = exported
    if architecture.name in DECOMPOSED:
        with torch.no_grad():
            second = exported.run_decompositions(get_decomp_table())
    for program, opset in ((exported, 23), (second, 18)):
        model = converted(program, opset)
        assert called(model).items() >= architecture.keeps.items()
        check(model, architecture, module, exception=architecture.exception)
        check_source(model, tmp_path)
    contrib = converted(exported, 23, "contrib")
    check_source(contrib, tmp_path)
    for size in architecture.sizes[1:]:
        arguments = architecture.arguments(*size)
        actual, expected = (
            contrib.run(**arguments, kernels=False),
            expected_outputs(module, arguments),
        )
        where = f"contrib, batch and length {size}"
        assert_close(list(actual), expected, exception=architecture.exception, message=where)


@pytest.mark.parametrize("architecture", HALF, ids=lambda a: a.name)
def test_float16_agrees_with_torch(architecture: Architecture) -> None:
    module = architecture.module(torch.float16)
    program = converted(architecture.export(module, torch.float16), 23)
    check(program, architecture, module, torch.float16, exception="half_model")


ATTENTION, NORM, SKIP_NORM = "scaled_dot_product_attention", "layer_norm", "skip_layer_norm"
DECODER = {ATTENTION: 2, "rope": 4, "rms_norm": 1, "skip_rms_norm": 4, "swiglu": 2}


@pytest.mark.parametrize(
    ("name", "composites"),
    [
        ("bert", {ATTENTION: 2, NORM: 1, SKIP_NORM: 4, "gelu": 2}),
        ("gpt2", {ATTENTION: 2, NORM: 1, SKIP_NORM: 4}),
        ("llama", DECODER),
        ("whisper", {ATTENTION: 3, NORM: 1, SKIP_NORM: 6, "gelu": 4}),
        ("swin", {ATTENTION: 4, NORM: 4, SKIP_NORM: 7, "gelu": 4}),
    ],
)
def test_composites_are_kept(name: str, composites: dict[str, int]) -> None:
    architecture = named(name)
    exported = architecture.export(architecture.module())
    assert called(converted(exported, 23)) == composites


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_every_size_varies(architecture: Architecture) -> None:
    """Each dynamic dim is run at its size in the export, at others, and the batch at 1."""
    first, *others = architecture.sizes
    assert len(others) >= 2
    assert any(batch == 1 for batch, _ in others)
    assert any(size > first for size in others)


def test_every_architecture_that_was_promised_is_there() -> None:
    promised = """
        bert roberta distilbert electra mpnet deberta_v2 modernbert gpt2 gpt_neox opt llama mistral
        qwen2 qwen3 gemma2 gemma3_text phi3 olmo2 falcon mixtral qwen3_moe gpt_oss deepseek_v3
        qwen3_next mamba2 t5 bart whisper vit dinov2 swin convnext segformer detr clip siglip
        wav2vec2 hubert
    """.split()
    assert {*promised, *DECOMPOSED} <= {architecture.name for architecture in ARCHITECTURES}
