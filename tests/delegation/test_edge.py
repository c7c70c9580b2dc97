"""The tutorial "Exporting to ExecuTorch", with the imports exchanged, and the flow around it."""

from __future__ import annotations

import pytest
import torch
from torch.export import ExportedProgram, export

from coreai_onnx import TorchConverter
from coreai_onnx.delegation import (
    BackendDetails,
    CapabilityPartitioner,
    DelegationSpec,
    EdgeCompileConfig,
    EdgeProgramManager,
    ExportPass,
    FinishConfig,
    FinishedProgram,
    LoweredModule,
    MemoryPlanningPass,
    delegates_of,
    to_backend,
    to_edge,
    to_edge_transform_and_lower,
)
from coreai_onnx.delegation import edge_ops as exir_ops
from coreai_onnx.delegation.edge import is_graph_pass
from coreai_onnx.errors import (
    DelegationError,
    ExportError,
    NothingToConvertError,
    PassError,
    StagingError,
)
from tests.delegation.demo_backend import DEMO, Tagging
from tests.support.tolerances import assert_close

aten = torch.ops.aten


class SimpleConv(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(in_channels=3, out_channels=16, kernel_size=3, padding=1)
        self.relu = torch.nn.ReLU()

    def forward(self, x):
        a = self.conv(x)
        return self.relu(a)


class Encode(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.linear(x, torch.randn(5, 10))


class Decode(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.linear(x, torch.randn(10, 5))


class ConvertReluToSigmoid(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        if op == exir_ops.edge.aten.relu.default:
            return super().call_operator(exir_ops.edge.aten.sigmoid.default, args, kwargs, meta)
        else:
            return super().call_operator(op, args, kwargs, meta)


def targets(program: ExportedProgram) -> list[object]:
    return [n.target for n in program.graph.nodes if n.op == "call_function"]


IMAGE = torch.randn(1, 3, 16, 16)


# ---------------------------------------------------------------------- the tutorial
def test_to_edge() -> None:
    edge_program: EdgeProgramManager = to_edge(export(SimpleConv(), (IMAGE,), strict=True))
    assert edge_program.methods == ("forward",)
    assert targets(edge_program.exported_program()) == [
        aten.convolution.default,
        aten.relu.default,
    ]


def test_several_methods() -> None:
    aten_encode = export(Encode(), (torch.randn(1, 10),), strict=True)
    aten_decode = export(Decode(), (torch.randn(1, 5),), strict=True)
    edge_program = to_edge({"encode": aten_encode, "decode": aten_decode})
    assert edge_program.methods == ("encode", "decode")
    for method in edge_program.methods:
        assert aten.randn.default in targets(edge_program.exported_program(method))
    finished = edge_program.finish()
    assert finished.run(torch.randn(1, 10), method_name="encode")[0].shape == (1, 5)
    assert finished.run(torch.randn(1, 5), method_name="decode")[0].shape == (1, 10)


def test_transform() -> None:
    module = SimpleConv()
    edge_program = to_edge(export(module, (IMAGE,), strict=True))
    transformed = edge_program.transform((ConvertReluToSigmoid(),))
    assert targets(transformed.exported_program()) == [
        aten.convolution.default,
        aten.sigmoid.default,
    ]
    assert targets(edge_program.exported_program())[-1] is aten.relu.default
    assert_close(transformed.finish().run(IMAGE)[0], module.conv(IMAGE).sigmoid().detach())
    assert_close(edge_program.finish().run(IMAGE)[0], module(IMAGE).detach())


def test_saving_to_a_file(tmp_path) -> None:
    class M(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.param = torch.nn.Parameter(torch.rand(3, 4))
            self.linear = torch.nn.Linear(4, 5)

        def forward(self, x):
            return self.linear(x + self.param).clamp(min=0.0, max=1.0)

    module, example_args = M(), (torch.randn(3, 4),)
    edge_program = to_edge(export(module, example_args, strict=True))
    executorch_program: FinishedProgram = edge_program.to_executorch(FinishConfig(passes=[]))
    with (tmp_path / "model.onnx").open("wb") as file:
        file.write(executorch_program.buffer)
    assert_close(executorch_program.run(*example_args)[0], module(*example_args).detach())


# ---------------------------------------------------------------------- around it
def negations_removed(graph, why) -> int:
    """Relu → Neg, on the ONNX graph."""
    changed = [node for node in graph.nodes if node.op == "Relu"]
    for node in changed:
        node.op = "Neg"
    return len(changed)


def test_passes_of_both_kinds_run_per_method() -> None:
    x = torch.randn(4)
    exported = {name: export(torch.nn.ReLU(), (x,)) for name in ("a", "b", "c")}
    manager = to_edge(exported)
    made = manager.transform({"a": [ConvertReluToSigmoid()], "b": [negations_removed]})
    expected = {"a": x.sigmoid(), "b": -x, "c": x.relu()}
    for name, y in expected.items():
        assert_close(made.finish().run(x, method_name=name)[0], y)
        assert_close(manager.finish().run(x, method_name=name)[0], x.relu())


def test_passes_of_the_config_run_before_lowering() -> None:
    x = torch.randn(4)
    manager = to_edge(export(torch.nn.ReLU(), (x,)))
    finished = manager.finish(FinishConfig(passes=[ConvertReluToSigmoid()]))
    assert_close(finished.run(x)[0], x.sigmoid())
    assert targets(finished.exported_program()) == [aten.sigmoid.default]


def test_a_user_s_operator_is_lowered_by_the_given_converter() -> None:
    with torch.library._scoped_library("delegation_tests", "DEF") as library:
        library.define("doubled(Tensor x) -> Tensor")
        library.impl("doubled", lambda x: x * 2, "CompositeExplicitAutograd")

        class Doubled(torch.nn.Module):
            def forward(self, x):
                return torch.ops.delegation_tests.doubled(x)

        converter, x = TorchConverter(), torch.randn(3)

        @converter.register_torch_lowering("delegation_tests::doubled.default")
        def doubled(op, x):
            return op.Add(x, x)

        manager = to_edge(export(Doubled(), (x,)), converter=converter)
        assert_close(manager.finish().run(x)[0], x * 2)
        assert_close(manager.finish().run(x)[0], x * 2)  # nothing stays staged


def test_what_is_not_a_program_is_an_error() -> None:
    program = export(torch.nn.ReLU(), (torch.ones(2),))
    for given, shown in (
        (torch.nn.ReLU(), "got ReLU\n  export a module first"),
        ([program], "got list\n  name the methods"),
        ({"encode": program, "decode": 3}, "got int for 'decode'\n"),
    ):
        takes = "to_edge takes an exported program or a dict of them by method, "
        with pytest.raises(StagingError, match=takes + shown):
            to_edge(given)
    with pytest.raises(StagingError, match="converter must be a TorchConverter, got 3"):
        to_edge(program, converter=3)
    with pytest.raises(NothingToConvertError, match="at least one program"):
        to_edge({})


def test_an_unknown_method_is_an_error() -> None:
    manager = to_edge(export(torch.nn.ReLU(), (torch.randn(2),)))
    for failing in (
        lambda: manager.exported_program("encode"),
        lambda: manager.transform({"encode": []}),
    ):
        with pytest.raises(StagingError, match="no method 'encode'; there are forward"):
            failing()


def test_a_pass_that_returns_something_else_is_an_error() -> None:
    manager = to_edge(export(torch.nn.ReLU(), (torch.randn(2),)))
    with pytest.raises(PassError, match="returned int"):
        manager.transform([lambda module: 3])


def test_a_program_that_torch_cannot_decompose_is_an_error(monkeypatch) -> None:
    def fails(self, table):
        raise RuntimeError("no rule")

    exported = export(torch.nn.ReLU(), (torch.randn(2),))
    monkeypatch.setattr(ExportedProgram, "run_decompositions", fails)
    with pytest.raises(ExportError, match=r"the method 'forward' cannot be decomposed: no rule"):
        to_edge(exported)


def test_the_kind_of_a_pass_is_that_of_its_parameters() -> None:
    assert is_graph_pass(negations_removed)
    assert not is_graph_pass(ConvertReluToSigmoid())
    assert not is_graph_pass(lambda module, verbose=False: None)


# ---------------------------------------------------------------------- arguments
RELU = Tagging(aten.relu.default)


def relu() -> EdgeProgramManager:
    return to_edge(export(torch.nn.ReLU(), (torch.randn(2),)))


@pytest.mark.parametrize(
    ("partitioner", "advice"),
    [
        (DEMO, rf"'{DEMO}' is not a Partitioner\n  for a whole program: to_backend\(backend_id"),
        (CapabilityPartitioner, r"pass an instance: CapabilityPartitioner\(\.\.\.\)"),
        ([RELU], "is not a Partitioner\n  call to_backend for each partitioner"),
        (None, "None is not a Partitioner"),
        ({"forward": DEMO}, f"'{DEMO}' is not a Partitioner"),
        (DelegationSpec(DEMO), r"not a Partitioner\n  such as CapabilityPartitioner\(Delegation"),
        (BackendDetails, r"not a Partitioner\n  such as CapabilityPartitioner\(Delegation"),
    ],
)
def test_what_is_not_a_partitioner_is_an_error(partitioner, advice) -> None:
    with pytest.raises(DelegationError, match=advice):
        relu().to_backend(partitioner)


@pytest.mark.parametrize("passes", [ConvertReluToSigmoid(), [3], "abc", {"forward": 3}, None])
def test_what_are_not_passes_is_an_error(passes) -> None:
    with pytest.raises(PassError, match=r"are a list of functions.*\n  put a single pass"):
        relu().transform(passes)


def test_a_pass_that_is_a_class_is_an_error() -> None:
    with pytest.raises(PassError, match=r"is a class\n  pass an instance: ConvertReluToSigmoid\("):
        relu().transform([ConvertReluToSigmoid])


@pytest.mark.parametrize("config", [{"passes": []}, {}, [], FinishConfig, EdgeCompileConfig()])
def test_what_is_not_a_configuration_is_an_error(config) -> None:
    with pytest.raises(
        StagingError, match=r"must be of type FinishConfig, .*\n  name the settings"
    ):
        relu().to_executorch(config)


@pytest.mark.parametrize("config", [{"preserve_ops": []}, {}, FinishConfig(), EdgeCompileConfig])
def test_what_is_not_a_configuration_of_to_edge_is_an_error(config) -> None:
    with pytest.raises(
        StagingError,
        match=r"must be of type EdgeCompileConfig, .*\n  .*EdgeCompileConfig\(preserve",
    ):
        to_edge(export(torch.nn.ReLU(), (torch.randn(2),)), compile_config=config)


def test_a_memory_plan_of_an_unknown_method_is_an_error() -> None:
    config = FinishConfig(memory_planning_pass={"encode": MemoryPlanningPass()})
    with pytest.raises(StagingError, match="no method 'encode'; there are forward"):
        relu().finish(config)


@pytest.mark.parametrize(
    "partitioner",
    [
        RELU,
        [RELU],
        (RELU, CapabilityPartitioner(DelegationSpec(DEMO), str)),
        {"forward": RELU},
        {"forward": [RELU]},
    ],
)
def test_one_partitioner_or_several(partitioner) -> None:
    made = to_edge_transform_and_lower(
        export(torch.nn.ReLU(), (torch.randn(2),)), None, partitioner
    )
    (part,) = delegates_of(made.exported_program())
    assert part.processed_bytes == b"aten.relu.default"


def test_operators_are_kept_on_request() -> None:
    exported = export(torch.nn.Softplus(), (torch.randn(2),))
    assert aten.softplus.default not in targets(to_edge(exported).exported_program())
    config = EdgeCompileConfig(
        preserve_ops=[aten.softplus.default], _check_ir_validity=False, _skip_dim_order=True
    )
    for manager in (
        to_edge(exported, compile_config=config),
        to_edge_transform_and_lower(exported, compile_config=config),
    ):
        assert targets(manager.exported_program()) == [aten.softplus.default]
    with pytest.raises(TypeError, match="keep_ops"):
        EdgeCompileConfig(keep_ops=[])


def test_nodes_have_debug_handles_that_passes_keep() -> None:
    manager = to_edge(export(SimpleConv(), (IMAGE,)))

    def handles(program: ExportedProgram) -> list[int]:
        return [n.meta["debug_handle"] for n in program.graph.nodes if n.op == "call_function"]

    def negated(module: torch.fx.GraphModule) -> None:
        output = module.graph.output_node()
        (result,) = output.args[0]
        with module.graph.inserting_before(output):
            output.args = ((module.graph.call_function(aten.neg.default, (result,)),),)

    assert handles(manager.exported_program()) == [1, 2]
    made = manager.transform([ConvertReluToSigmoid(), negated])
    assert handles(made.exported_program()) == [1, 2, 3]


# ---------------------------------------------------------------------------------- to_backend
VECTOR = torch.randn(3)


@pytest.fixture
def edge():
    return to_edge(export(torch.nn.ReLU(), (VECTOR,))).exported_program()


def test_to_backend_takes_a_whole_program(edge) -> None:
    made = to_backend(DEMO, edge, [])
    assert isinstance(made, LoweredModule)
    assert made.original_module is edge


def test_to_backend_takes_a_partitioner(edge) -> None:
    made = to_backend(edge, Tagging(torch.ops.aten.relu.default))
    assert [part.processed_bytes for part in delegates_of(made)] == [b"aten.relu.default"]
    assert not delegates_of(edge)
    assert torch.equal(made.module()(VECTOR), VECTOR.relu())


def test_other_arguments_of_to_backend(edge) -> None:
    with pytest.raises(TypeError, match=r"to_backend takes .* not \(ExportedProgram, str\)"):
        to_backend(edge, DEMO)
