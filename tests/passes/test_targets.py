"""Targets on real models: what they hold, and that the numbers stay."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx import OnnxProgram, TorchConverter
from coreai_onnx.delegation import FinishConfig, to_edge
from coreai_onnx.errors import TargetError
from coreai_onnx.model.metadata import TARGET
from coreai_onnx.passes import CONTRIB, ORDER, TARGETS, Pass, Target, passes_for
from coreai_onnx.targets.contrib import contrib_since
from coreai_onnx.targets.coverage import gaps
from coreai_onnx.targets.opsets import PROVIDER_TARGETS
from tests.delegation.demo_backend import Tagging
from tests.models.architecture import Architecture, expected_outputs
from tests.models.zoo import named
from tests.passes.rewriting import optimize_for, parse, same_bytes
from tests.support.tolerances import assert_close

NAMES = ("bert", "llama", "whisper", "resnet")


@functools.cache
def exported(name: str) -> tuple[Architecture, torch.nn.Module, torch.export.ExportedProgram]:
    architecture = named(name)
    module = architecture.module()
    return architecture, module, architecture.export(module)


@functools.cache
def lowered(name: str, opset: int) -> onnx.ModelProto:
    program = TorchConverter().add_exported_program(exported(name)[2])
    return program.to_onnx(opset_version=opset).to_proto()


def converted(name: str, opset: int = 23) -> OnnxProgram:
    return OnnxProgram({"main": ir.from_proto(lowered(name, opset))})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_every_target_agrees_with_torch(name: str, target: str) -> None:
    architecture, module, _ = exported(name)
    program = converted(name, 18 if target == "portable" else 23).optimize(target=target)
    onnx.checker.check_model(program.to_proto(), full_check=True)
    again = ir.from_proto(program.to_proto())
    assert optimize_for(again, target).total == 0
    assert f"optimized for {target}" in program.summary()
    for size in architecture.sizes[1:]:
        arguments = architecture.arguments(*size)
        actual = program.run(**arguments, kernels=False)
        assert_close(list(actual), expected_outputs(module, arguments), message=str(size))


class _Extremes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        positive = x > 0
        return positive.any(-1), torch.amax(positive, 0), torch.amin(positive, -1), positive.all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("delegated", [False, True])
def test_functions_keep_to_the_rules_of_their_opset(
    target: Target, delegated: bool, tmp_path: Path
) -> None:
    module = torch.nn.Sequential(torch.nn.ReLU(), _Extremes())
    x = torch.randn(3, 4)
    if delegated:
        edge = to_edge(torch.export.export(module, (x,)))
        calls = (node for node in edge.exported_program().graph.nodes if node.op == "call_function")
        edge = edge.to_backend(Tagging(*(node.target for node in calls)))
        program = edge.finish(FinishConfig(target=target)).onnx_program
    else:
        program = coreai_onnx.convert(module, x, externalize_modules=[_Extremes], optimize=False)
        program.optimize(target=target)
    program.save(tmp_path / "model.onnx")
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    for actual, expected in zip(program.run(x, kernels=False), module(x), strict=True):
        assert_close(actual, expected)


def ops(name: str, target: str, opset: int = 23) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in converted(name, opset).optimize(target=target).model.graph.all_nodes():
        key = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        counts[key] = counts.get(key, 0) + 1
    return counts


def test_the_default_keeps_composites() -> None:
    found = ops("llama", "onnxruntime")
    assert found["ai.coreai::rms_norm"] == 1
    assert found["ai.coreai::skip_rms_norm"] == 4
    assert found["ai.coreai::rope"] == 4
    assert (found["Cos"], found["Sin"]) == (1, 1)  # once for all layers
    assert not {"Pow", "ReduceMean", "GatherND"} & set(found)


def test_kernels_get_gates_and_residual_norms() -> None:
    found = ops("llama", "kernels")
    assert found["ai.coreai::swiglu"] == 2
    assert found["ai.coreai::skip_rms_norm"] == 4
    assert ops("bert", "kernels")["ai.coreai::skip_layer_norm"] >= 4


def test_portable_holds_standard_ops_only() -> None:
    assert not any("::" in op for op in ops("llama", "portable", 18))
    assert not any("::" in op for op in ops("resnet", "portable", 23))


def test_a_program_that_cannot_be_portable_is_left_alone() -> None:
    program = converted("llama")
    before = program.to_proto().SerializeToString(deterministic=True)
    with pytest.raises(TargetError, match="Attention is an op since opset 23"):
        program.optimize(target="portable")
    assert program.to_proto().SerializeToString(deterministic=True) == before


def test_a_program_from_a_file_is_optimized_like_any_other(tmp_path) -> None:
    program = converted("llama")
    program.save(tmp_path / "model.onnx")
    loaded = OnnxProgram.load(tmp_path / "model.onnx").optimize(target="kernels")
    program.optimize(target="kernels")
    assert loaded.composites() == program.composites()
    assert len(loaded.model.graph) == len(program.model.graph)


def test_unknown_targets_are_refused() -> None:
    model = parse("main (float[n] x) => (float[n] y) { y = Neg (x) }")
    with pytest.raises(TargetError, match="no target 'gpu'; there are onnxruntime, portable"):
        optimize_for(model, "gpu")
    for version in (1.22, (1, 22), "new"):
        with pytest.raises(TargetError, match=r"must be a version like '1\.22'"):
            optimize_for(model, "contrib", minimum_onnxruntime=version)
    assert TARGET not in model.metadata_props


def test_own_passes_take_the_place_of_the_targets() -> None:
    model = parse("main (float[n] x) => (float[n] y) { z = Identity (x)  y = Neg (z) }")
    before = ir.from_proto(ir.to_proto(model))
    assert optimize_for(model, passes=[]).total == 0
    assert model.metadata_props.pop(TARGET) == "onnxruntime"
    assert same_bytes(model, before)


def test_contrib_has_onnxruntimes_ops() -> None:
    found = ops("llama", "contrib")
    assert found["com.microsoft::GroupQueryAttention"] == 2
    assert (
        found["ai.coreai::skip_rms_norm"] == 4
    )  # faster than onnxruntime's, see CONTRIB_SLOW_SINCE
    found = ops("bert", "contrib")
    assert found["Attention"] == 2
    assert found["com.microsoft::BiasGelu"] == 2


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_contrib_has_onnxruntimes_experts(name: str) -> None:
    """As ``convert`` exports them: a program that torch exported alone sorts and counts its rows."""
    architecture = named(name)
    module = architecture.module()
    program = coreai_onnx.convert(
        module,
        kwargs=architecture.arguments(*architecture.sizes[0]),
        dynamic_shapes=dict(architecture.dynamic),
        optimize=False,
    ).optimize(target="contrib")
    assert program.pass_report.counts["contrib_moe"] == 2
    assert "com.microsoft::MoE" in program.summary()
    for size in architecture.sizes[1:]:
        arguments = architecture.arguments(*size)
        actual = program.run(**arguments, kernels=False)
        assert_close(list(actual), expected_outputs(module, arguments), message=str(size))


def test_every_target_begins_and_ends_like_the_default() -> None:
    for target in TARGETS:
        assert passes_for(target)[0] is ORDER[0]
        assert passes_for(target)[-1] is ORDER[-1]


@pytest.mark.parametrize("one", CONTRIB)
def test_targets_and_files_have_one_table_of_releases(one: Pass) -> None:
    """A pass is left out of every release that a file with its op would not name."""
    ops = re.findall(r'"([A-Z]\w+)"', inspect.getsource(inspect.getmodule(one)))
    since = max(contrib_since(op, {}) for op in ["Gelu", *ops])
    for minor in range(18, 32):
        if one in passes_for("contrib", f"1.{minor}"):
            assert since <= (1, minor)
    assert one in passes_for("contrib", "1.27") or one in passes_for("contrib")


def test_own_ops_are_those_of_the_oldest_onnxruntime() -> None:
    names = [[one.__name__ for one in passes_for("contrib", v)] for v in (None, "1.31", "1.24")]
    assert names[0] == names[1]
    newer = {"contrib_open_attention", "contrib_linear_attention", "contrib_embedding_nbits"}
    newer.add("contrib_qmoe")
    assert set(names[1]) - set(names[2]) == newer
    assert set(names[2]) - set(names[1]) == {"contrib_skip_norms"}
    assert passes_for("onnxruntime", "1.18") == ORDER
    with pytest.raises(TargetError, match="must be a version like"):
        passes_for("contrib", "new")
    program = converted("llama", 21)
    program.optimize(target="contrib", minimum_onnxruntime="1.20")
    assert "ai.coreai::scaled_dot_product_attention" in program.composites()
    program.optimize(target="contrib")  # the file remembers
    assert "ai.coreai::scaled_dot_product_attention" in program.composites()
    program.optimize(target="contrib", minimum_onnxruntime="1.21")
    assert "ai.coreai::scaled_dot_product_attention" not in program.composites()


@pytest.mark.parametrize("target", PROVIDER_TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_files_of_providers_have_kernels_there(name: str, target: Target) -> None:
    for opset in (18, 23):
        program = converted(name, opset).optimize(target=target)
        rest = gaps(program.models["main"], PROVIDER_TARGETS[target])
        assert [gap for gap in rest if not gap.declared] == []
        assert not program.models["main"].functions
        assert target == "webgpu" or not rest


def readmes_encoder() -> OnnxProgram:
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True, norm_first=True).eval()
    dims = {"src": {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}}
    return coreai_onnx.convert(model, (torch.randn(2, 10, 64),), dynamic_shapes=dims)


def test_nodes_on_webgpu() -> None:
    nodes, declared = {}, {}
    for name in ("README", "bert", "llama", "resnet"):
        program = readmes_encoder() if name == "README" else converted(name)
        model = program.optimize(target="webgpu").models["main"]
        ops = [node for node in model.graph.all_nodes() if node.op_type != "Constant"]
        left = gaps(model, PROVIDER_TARGETS["webgpu"])
        nodes[name], declared[name] = len(ops), len(left)
        assert all(gap.declared for gap in left)
    # The table of docs/providers.md.
    assert nodes == {"README": 42, "bert": 99, "llama": 200, "resnet": 18}
    assert declared == {"README": 4, "bert": 4, "llama": 17, "resnet": 0}


def test_operators_that_have_no_older_form_for_a_provider() -> None:
    text = "main (float[4] x, int64 a) => (float[4] y) { y = CumProd (x, a) }"
    with pytest.raises(TargetError, match="the target webgpu needs opset 18") as raised:
        optimize_for(parse(text, 26), "webgpu")
    assert "1x CumProd is an op since opset 26" in str(raised.value)
