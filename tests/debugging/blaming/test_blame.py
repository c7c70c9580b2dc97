"""Wrong nodes and lines."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx.debugging.blaming.blame import blame
from coreai_onnx.delegation import to_edge
from coreai_onnx.errors import (
    ComparisonError,
    KernelsNotBuiltError,
    LoadError,
    ProviderError,
    SaveError,
)
from coreai_onnx.export.record import ExportRecord
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.libraries.library import ENVIRONMENT_VARIABLE
from tests.debugging.small_reference import Small, converted
from tests.debugging.wrong_kernel import build_wrong_library
from tests.delegation.demo_backend import Tagging
from tests.support.own_process import with_library
from tests.support.small_models import linear_model


def node_of(program: OnnxProgram, op: str) -> ir.Node:
    return next(node for node in program.model.graph if node.op_type == op)


def with_wrong_weight(program: OnnxProgram, name: str) -> OnnxProgram:
    value = program.model.graph.initializers[name]
    assert value.const_value is not None
    array = value.const_value.numpy()
    value.const_value = ir.tensor((array * 1.5 + 0.25).astype(array.dtype), name=name)
    return program


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_right_model_is_clean(dtype: torch.dtype) -> None:
    found = blame(converted(dtype), kernels=False)
    found.assert_clean()
    assert found.checked >= 6
    assert not found.unchecked
    assert "nothing is wrong" in str(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_wrong_operator_is_found_with_its_line(dtype: torch.dtype) -> None:
    program = converted(dtype)
    node_of(program, "Add").op_type = "Sub"
    (finding,) = blame(program, kernels=False).findings
    (node,) = finding.nodes
    assert (finding.kind, node.op) == ("graph", "Sub")
    assert node.where.code == "hidden = torch.tanh(hidden) + x"
    assert re.fullmatch(r".*small_reference\.py:\d+", node.where.source)
    assert finding.lines == (node.where.source,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_right_model_with_fused_activations_is_clean(dtype: torch.dtype) -> None:
    """A value that a pass changes does not keep the name of torch's value."""
    layers = [torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8), torch.nn.SiLU()]
    module = torch.nn.Sequential(*layers).eval().to(dtype)
    program = coreai_onnx.convert(module, (torch.randn(4, 8, dtype=dtype),))
    program.optimize(target="kernels")
    assert {node.op_type for node in program.model.graph} >= {"add_bias.gelu", "add_bias.silu"}
    blame(program, kernels=False).assert_clean()


class Thirds(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        a, b, c = x.split(2, dim=-1)
        return a.tanh(), b.sigmoid(), c.exp()


def test_a_split_with_exchanged_outputs_is_found() -> None:
    """One output is right, and torch does not know the outputs by their names."""
    program = coreai_onnx.convert(Thirds(), (torch.randn(4, 6),))
    split = node_of(program, "Split")
    for index, value in enumerate(split.outputs):
        value.name = f"part_{index}"
    tanh, sigmoid = node_of(program, "Tanh"), node_of(program, "Sigmoid")
    tanh.replace_input_with(0, split.outputs[1])
    sigmoid.replace_input_with(0, split.outputs[0])
    (finding,) = blame(program, kernels=False).findings
    assert [node.op for node in finding.nodes] == ["Split"]


def test_the_error_is_blamed_on_its_cause_only() -> None:
    """Everything after the first linear layer is wrong too, but not by itself."""
    program = with_wrong_weight(converted(), "first.bias")
    (finding,) = blame(program, kernels=False).findings
    assert {node.where.module for node in finding.nodes} == {"first"}
    assert {node.where.module_class for node in finding.nodes} == {"Linear"}


def test_two_faults_are_two_findings_in_graph_order() -> None:
    program = with_wrong_weight(with_wrong_weight(converted(), "second.bias"), "norm.weight")
    found = blame(program, kernels=False)
    assert [f.nodes[0].where.module for f in found.findings] == ["norm", "second"]
    with pytest.raises(ComparisonError, match="2 findings"):
        found.assert_clean()


def test_a_file_and_its_record(tmp_path: Path) -> None:
    converted().save(tmp_path / "m.onnx", record=tmp_path / "m.pt2")
    record = ExportRecord.load(tmp_path / "m.pt2")
    assert blame(tmp_path / "m.onnx", record, kernels=False).clean
    wrong = OnnxProgram.load(tmp_path / "m.onnx")
    node_of(wrong, "Tanh").op_type = "Sigmoid"
    (finding,) = blame(wrong, record, kernels=False).findings
    assert finding.nodes[0].where.code == "hidden = torch.tanh(hidden) + x"


def test_a_region_that_cannot_run_is_found() -> None:
    program = converted()
    node_of(program, "Softmax").attributes["axis"] = ir.AttrInt64("axis", 7)
    (finding,) = blame(program, kernels=False).findings
    assert [node.op for node in finding.nodes] == ["Softmax"]
    assert "cannot run" in finding.difference.problem


class Counter(torch.nn.Module):
    """A state that goes up, and scales the input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return torch.where(self.count > 2.5, x.exp(), x.sin())


def test_states_are_carried_from_call_to_call() -> None:
    x = torch.randn(4)
    program = coreai_onnx.convert(Counter(), (x,))
    calls: list = [(x,), (x + 1,), (x + 2,)]
    assert blame(program, Counter(), calls, kernels=False).clean
    node_of(program, "Add").op_type = "Sub"
    (finding,) = blame(program, None, calls, kernels=False).findings
    assert finding.nodes[0].where.code == "self.count += 1"


class Returns(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, self.kept, x.sin()


def test_a_module_that_returns_its_input_and_a_buffer() -> None:
    found = blame(coreai_onnx.convert(Returns(), (torch.randn(3),)), kernels=False)
    found.assert_clean()
    assert not found.unchecked


class Off(torch.nn.Module):
    """What ``Small`` computes, with an error after the export."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + (0 if torch.compiler.is_exporting() else 0.5)


def test_a_wrong_export_of_torch() -> None:
    module, x = Off().eval(), torch.randn(3, 8)
    program = coreai_onnx.convert(module, (x,))
    assert blame(program, kernels=False).clean
    (finding,) = blame(program, module, kernels=False).findings
    assert finding.kind == "export"
    assert not blame(converted(), Small().eval(), kernels=False).findings


class Noise(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + torch.rand_like(x)).sin()


def test_random_results_are_not_compared_and_what_reads_them_is() -> None:
    with pytest.warns(coreai_onnx.errors.RandomnessWarning):
        program = coreai_onnx.convert(Noise(), (torch.randn(2, 3),))
    found = blame(program, kernels=False)
    assert found.clean
    assert {node.where.code for node in found.unchecked} == {
        "return (x + torch.rand_like(x)).sin()"
    }
    assert len(found.unchecked) < len(program.model.graph)
    node_of(program, "Sin").op_type = "Cos"
    assert len(blame(program, kernels=False).findings) == 1


class Normalizes(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = torch.nn.RMSNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(self.norm(x))
        return torch.nn.functional.silu(hidden)


def normalizing() -> OnnxProgram:
    return coreai_onnx.convert(Normalizes().eval(), (torch.randn(3, 8),))


def findings_of_kernels() -> list[tuple[str, list[str], str]]:
    program = normalizing()
    assert blame(program, kernels=False).clean
    return [
        (one.kind, [node.op for node in one.nodes], one.nodes[0].where.code)
        for one in blame(program, kernels=True).findings
    ]


@pytest.mark.slow
def test_a_wrong_kernel_is_told_from_a_wrong_body(kernels: Path, tmp_path: Path) -> None:
    assert blame(normalizing(), kernels=True).clean
    found = with_library(build_wrong_library(kernels, tmp_path), findings_of_kernels)
    assert found == [("kernel", ["ai.coreai::rms_norm"], "hidden = self.up(self.norm(x))")]


def test_the_reproduction_runs_without_this_package(tmp_path: Path) -> None:
    import runpy

    import onnx

    program = converted()
    node_of(program, "Add").op_type = "Sub"
    (folder,) = blame(program, kernels=False).reproduce(tmp_path / "wrong")
    data = folder / "test_data_set_0"
    assert sorted(p.name for p in data.iterdir()) == ["input_0.pb", "input_1.pb", "output_0.pb"]
    assert [n.op_type for n in onnx.load(folder / "model.onnx").graph.node] == ["Sub"]
    ran = runpy.run_path(str(folder / "run.py"))
    assert np.max(np.abs(ran["actual"] - ran["expected"])) > 0.1


def test_errors_say_what_is_missing() -> None:
    with pytest.raises(ComparisonError, match="no record"):
        blame(linear_model())
    with pytest.raises(ComparisonError, match="has no value for the input"):
        blame(coreai_onnx.convert(Counter(), (torch.randn(4),)), converted().record())
    with pytest.raises(ComparisonError, match="cannot be run"):
        blame(converted(), None, torch.randn(3, 7), kernels=False)


class Twice(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Small(), torch.nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x)).tanh()


def test_an_externalized_module_is_compared_as_one_node(tmp_path: Path) -> None:
    module, x = Twice().eval(), torch.randn(3, 8)
    program = coreai_onnx.convert(module, (x,), externalize_modules=[Small])
    assert blame(program, kernels=False).clean
    body = next(f for f in program.model.functions.values() if f.name == "Small")
    next(node for node in body if node.op_type == "Add").op_type = "Sub"
    (finding,) = blame(program, kernels=False).findings
    assert [node.op for node in finding.nodes] == ["ai.coreai.module::Small"]
    with pytest.raises(SaveError, match="externalized modules"):
        program.record().save(tmp_path / "r.pt2")


def test_a_broken_proto_is_refused_without_warnings_of_onnx_ir(
    log_records: list[logging.LogRecord],
) -> None:
    """They print the names in a file unescaped."""
    program = converted()
    proto = program.to_proto()
    proto.graph.node[0].input[0] = "\x1b[2J"
    ir.from_proto(proto)
    assert log_records.pop().name == "onnx_ir.serde"
    log_records.clear()
    for source in (proto, proto.SerializeToString()):
        with pytest.raises(LoadError, match=r"the given (model|bytes): .*\\x1b\[2J"):
            blame(source, program.record(), kernels=False)
    assert not log_records


def test_a_proto_keeps_the_source_lines_of_its_nodes() -> None:
    program = converted()
    next(node for node in program.model.graph if node.op_type == "Tanh").op_type = "Sigmoid"
    (finding,) = blame(program.to_proto(), program.record(), kernels=False).findings
    assert finding.nodes[0].where.code


class Delegated(torch.nn.Module):
    def forward(self, x):
        y = x.sin()
        z = y + x
        return z.exp()


def test_a_wrong_part_lists_the_lines_of_its_debug_handles(tmp_path: Path) -> None:
    aten, x = torch.ops.aten, torch.randn(4)
    edge = to_edge(torch.export.export(Delegated(), (x,)))
    finished = edge.to_backend(Tagging(aten.sin.default, aten.add.Tensor)).finish()
    (path,) = finished.save(tmp_path / "model.onnx")
    program = OnnxProgram.load(path)
    blame(program, finished.exported_program(), (x,), kernels=False).assert_clean()
    (part,) = program.model.functions.values()
    next(node for node in part if node.op_type == "Add").op_type = "Sub"
    found = blame(program, finished.exported_program(), (x,), kernels=False)
    (finding,) = found.findings
    lines = [(handle, line.partition("   ")[2]) for handle, line in finding.nodes[0].handles]
    assert lines == [(1, "y = x.sin()"), (2, "z = y + x")]
    assert re.search(r"debug handle 2 +\S*test_blame.py:\d+ +z = y \+ x", str(found))


class Pair(torch.nn.Module):
    def __init__(self, error: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.error = error

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen += 1
        return x.exp() + self.seen, x.sin() + self.error


def test_each_wrong_output_of_each_call_of_the_export() -> None:
    x = torch.randn(5)
    program = coreai_onnx.convert(Pair(), (x,))
    calls = [(x,), (x + 1,)]
    assert blame(program, Pair(), calls, kernels=False).clean
    findings = blame(program, Pair(0.1), calls, kernels=False).findings
    assert [(one.kind, one.call) for one in findings] == [("export", 0), ("export", 1)]
    assert len({one.values for one in findings}) == 1
    assert all(one.difference.mismatched == 5 for one in findings)


def test_kernels_that_are_not_built_are_an_error_and_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = converted()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "/nowhere/ops.so")
    with pytest.raises(KernelsNotBuiltError):
        blame(program, kernels=True)
    assert not blame(program).kernels_checked


def test_former_names_of_differences_are_deprecated() -> None:
    program = converted()
    node_of(program, "Tanh").op_type = "Sin"
    result = blame(program, kernels=False)
    (finding,) = result.findings
    row = coreai_onnx.compare(program).rows[0]
    for old, new, name in (
        (finding, finding.difference, "judgment"),
        (row, row.difference, "judgment"),
        (result, result.differences, "judgments"),
        (result, result.differences, "judgements"),
        (finding.difference, finding.difference.mismatched, "wrong"),
        (finding.difference, finding.difference.torch_error, "own"),
    ):
        with pytest.warns(DeprecationWarning, match="is deprecated: use"):
            assert getattr(old, name) == new


def test_a_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = converted()
    assert "regions compute what torch does on CPU" in str(blame(program, provider="cpu"))
    node_of(program, "Add").op_type = "Sub"
    found = blame(program, kernels=False, provider=("cpu", {"use_arena": False}))
    assert str(found).splitlines()[0].endswith("regions on CPUExecutionProvider")
    (folder,) = found.reproduce(tmp_path)
    script = (folder / "run.py").read_text()
    assert "providers=[('CPUExecutionProvider', {'use_arena': '0'}), " in script
    for broken in ("Sub", "Nonsense"):  # a region that cannot run is not the provider's fault
        node_of(program, "Sub").op_type = broken
        with pytest.raises(ProviderError, match="tpu is not available"):
            blame(program, provider="tpu")
