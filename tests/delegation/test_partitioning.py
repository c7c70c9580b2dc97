"""Parts of programs become functions in the domain of their backend, and compute the same."""

from __future__ import annotations

from types import MappingProxyType

import onnx
import pytest
import torch
from torch.export import Dim, export

from coreai_onnx import OnnxProgram, session
from coreai_onnx.delegation import (
    CapabilityPartitioner,
    CompileSpec,
    DelegationSpec,
    Partitioner,
    PartitionResult,
    backend,
    delegates_of,
    to_edge,
    to_edge_transform_and_lower,
)
from coreai_onnx.errors import DelegationError, StagingError
from tests.delegation.demo_backend import DEMO, Demo, Tagging
from tests.support.tolerances import assert_close

aten = torch.ops.aten
OTHER = "delegation.other"
MM_ADD = Tagging(aten.mm.default, aten.add.Tensor)


class Foo(torch.nn.Module):
    def forward(self, a, x, b):
        y = torch.mm(a, x)
        z = y + b
        a = z - a
        y = torch.mm(a, x)
        z = y + b
        return z


ARGS = (torch.randn(2, 2), torch.randn(2, 2), torch.randn(2, 2))


@pytest.fixture
def foo():
    return to_edge(export(Foo(), ARGS, strict=True))


def targets(program) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


def test_parts_of_the_tutorial(foo) -> None:
    before = str(foo.exported_program().graph)
    made = foo.to_backend(MM_ADD)
    program = made.exported_program()
    first, second = delegates_of(program)
    assert (
        targets(first.program) == targets(second.program) == ["aten.mm.default", "aten.add.Tensor"]
    )
    assert first.processed_bytes == b"aten.mm.default#aten.add.Tensor"
    assert targets(program).count("coreai_onnx.delegate.default") == 2
    assert "aten.sub.Tensor" in targets(program)
    assert str(foo.exported_program().graph) == before
    assert_close(program.module()(*ARGS), Foo()(*ARGS))
    assert_close(made.finish().run(*ARGS)[0], Foo()(*ARGS))


def test_equal_parts_share_function_and_bytes_in_the_file(foo, tmp_path) -> None:
    finished = foo.to_backend(MM_ADD).finish()
    (path,) = finished.save(tmp_path / "model.onnx")
    proto = onnx.load(path)
    (function,) = [f for f in proto.functions if f.domain == DEMO]
    calls = [n for n in proto.graph.node if n.domain == DEMO]
    assert [n.op_type for n in calls] == [function.name, function.name]
    (blob,) = [i for i in proto.graph.initializer if i.name.startswith(DEMO)]
    assert {n.input[-1] for n in calls} == {blob.name}
    assert onnx.numpy_helper.to_array(blob).tobytes() == b"aten.mm.default#aten.add.Tensor"
    metadata = {entry.key: entry.value for entry in function.metadata_props}
    assert metadata["coreai.backend"] == DEMO
    (body,) = [f for f in OnnxProgram.load(path).model.functions.values() if f.domain == DEMO]
    assert all("test_partitioning.py:" in n.metadata_props["coreai.source"] for n in body)
    assert_close(OnnxProgram.load(path).run(*ARGS)[0], Foo()(*ARGS))


def test_parts_with_other_settings_have_their_own_function(foo) -> None:
    fast = Tagging(aten.mm.default, specs=(CompileSpec("level", b"3"),))
    plain = Tagging(aten.add.Tensor)
    made = foo.to_backend(fast).to_backend(plain)
    assert len(delegates_of(made.exported_program())) == 4
    model = made.finish().onnx_program.model
    assert len([f for f in model.functions.values() if f.domain == DEMO]) == 2
    assert_close(made.finish().run(*ARGS)[0], Foo()(*ARGS))


def test_weights_states_and_dynamic_sizes() -> None:
    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            y = self.linear(x).relu()
            self.total.add_(y.sum(0))
            return y.reshape(x.shape[0] * 3) * self.total.sum()

    module, x = Counts(), torch.randn(2, 3)
    exported = export(module, (x,), dynamic_shapes=({0: Dim("rows")},))
    tagged = (
        aten.linear.default,
        aten.relu.default,
        aten.sum.dim_IntList,
        aten.add.Tensor,
        aten.reshape.default,
        aten.view.default,
    )
    manager = to_edge(exported).to_backend(Tagging(*tagged))
    delegates = delegates_of(manager.exported_program())
    assert "aten.add.Tensor" in [t for d in delegates for t in targets(d.program)]
    assert any("linear.weight" in d.program.state_dict for d in delegates)
    finished = manager.finish()
    for rows in (2, 5):
        x = torch.randn(rows, 3)
        assert_close(finished.run(x)[0], module(x).detach())


def test_parts_in_branches() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() - 1, (x,))

    x = torch.tensor([1.0, 2.0])
    manager = to_edge(export(Branches(), (x,)))
    made = manager.to_backend(Tagging(aten.sin.default, aten.add.Tensor, aten.cos.default))
    assert len(delegates_of(made.exported_program())) == 2
    finished = made.finish()
    for given in (x, -x):
        assert_close(finished.run(given)[0], Branches()(given))


def test_all_steps_in_one_call() -> None:
    made = to_edge_transform_and_lower(
        {"a": export(Foo(), ARGS), "b": export(torch.nn.ReLU(), (ARGS[0],))}, [], [MM_ADD]
    )
    assert [len(delegates_of(made.exported_program(name))) for name in made.methods] == [2, 0]


def test_a_partitioner_per_method(foo) -> None:
    assert delegates_of(foo.to_backend({"forward": MM_ADD}).exported_program())
    with pytest.raises(StagingError, match="no method 'other'"):
        foo.to_backend({"other": MM_ADD})


@pytest.mark.parametrize("kind", ["capability", "user's"])
def test_tags_of_a_call_of_partition_do_not_count(foo, kind) -> None:
    sums = CapabilityPartitioner(
        DelegationSpec(DEMO),
        lambda node: "" if node.target in (aten.add.Tensor, aten.sub.Tensor) else "no product",
    )
    if kind == "user's":
        sums = Tagging(aten.add.Tensor, aten.sub.Tensor)
    products = Tagging(aten.mm.default)
    for asked, used in ((sums, products), (products, sums)):
        manager = to_edge(export(Foo(), ARGS))
        expected = manager.to_backend(used)
        asked.partition(manager.exported_program())
        made = manager.to_backend(used)
        found, wanted = (
            [d.processed_bytes for d in delegates_of(m.exported_program())]
            for m in (made, expected)
        )
        assert found == wanted
        assert_close(made.finish().run(*ARGS)[0], Foo()(*ARGS))


def test_asking_for_reasons_does_not_change_the_program(foo) -> None:
    program = foo.exported_program()
    asked = CapabilityPartitioner(DelegationSpec(DEMO), lambda node: "")
    result = asked.partition(program)
    assert not any("delegation_tag" in node.meta for node in program.graph.nodes)
    tagged = [n for n in result.tagged_exported_program.graph.nodes if "delegation_tag" in n.meta]
    assert len(tagged) == 5


def test_parts_are_attributes_of_their_graph(foo) -> None:
    module = foo.to_backend(MM_ADD).transform([lambda module: None]).exported_program().graph_module
    for part in (module.lowered_module_0, module.lowered_module_1):
        assert part.backend_id == DEMO
        assert targets(part.original_module) == ["aten.mm.default", "aten.add.Tensor"]
    assert not hasattr(module, "lowered_module_2")
    first, second = delegates_of(foo.to_backend(MM_ADD).exported_program())
    assert first.placeholders[0].name == "a"
    assert [n.name for n in module.lowered_module_1.delegate.placeholders] == [
        n.name for n in second.placeholders
    ]


class ByBackend(Partitioner):
    """Gives products to one backend and sums to another, in branches too."""

    backends = MappingProxyType({aten.mm.default: DEMO, aten.add.Tensor: OTHER})

    def partition(self, exported_program):
        tags = {}
        for module in exported_program.graph_module.modules():
            for node in getattr(module, "graph", exported_program.graph).nodes:
                if node.target in self.backends:
                    tag = f"{self.backends[node.target]} {node.name} {id(module)}"
                    node.meta["delegation_tag"] = tag
                    tags[tag] = DelegationSpec(self.backends[node.target])
        return PartitionResult(exported_program, tags)


def test_several_backends_at_once(foo) -> None:
    backend(OTHER)(Demo)
    made = foo.to_backend(ByBackend())
    found = [d.backend_id for d in delegates_of(made.exported_program())]
    assert found == [DEMO, OTHER, DEMO, OTHER]
    functions = made.finish().onnx_program.model.functions.values()
    assert [(f.domain, f.name) for f in functions] == [(DEMO, "part_0"), (OTHER, "part_0")]
    assert_close(made.finish().run(*ARGS)[0], Foo()(*ARGS))


def test_several_backends_in_branches_with_states_and_dynamic_sizes() -> None:
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))
            self.weight = torch.nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            self.total.add_(x.sum(0))
            return torch.cond(
                x.sum() > 0,
                lambda x, w, t: torch.mm(x, w) + t,
                lambda x, w, t: torch.mm(x + t, w),
                (x, self.weight, self.total),
            )

    backend(OTHER)(Demo)
    module, x = Branches(), torch.ones(2, 3)
    exported = export(module, (x,), dynamic_shapes=({0: Dim("rows")},))
    made = to_edge(exported).to_backend(ByBackend())
    found = [d.backend_id for d in delegates_of(made.exported_program())]
    assert sorted(found) == [DEMO, DEMO, OTHER, OTHER, OTHER]
    stream = session(made.finish().onnx_program)
    for given in (x, -torch.ones(5, 3), torch.ones(4, 3)):
        assert_close(stream.run(given)[0], module(given).detach())


# ---------------------------------------------------------------------- bad input
class ByIndex(Partitioner):
    """Tags nodes by their index among the calls."""

    def __init__(self, **tags) -> None:
        self.tags = tags

    def partition(self, exported_program):
        calls = [n for n in exported_program.graph.nodes if n.op == "call_function"]
        for tag, indices in self.tags.items():
            for index in indices:
                calls[index].meta["delegation_tag"] = tag
        return PartitionResult(exported_program, dict.fromkeys(self.tags, DelegationSpec(DEMO)))


class Changing(Partitioner):
    def partition(self, exported_program):
        next(n for n in exported_program.graph.nodes if n.target is aten.mm.default).args = ARGS[:2]
        return PartitionResult(exported_program, {})


class Unknown(Partitioner):
    def partition(self, exported_program):
        exported_program.graph.find_nodes(op="call_function", target=aten.sub.Tensor)[0].meta[
            "delegation_tag"
        ] = "gone"
        return PartitionResult(exported_program, {})


class Result(Partitioner):
    def __init__(self, program, tags) -> None:
        self.result = PartitionResult(program, tags)

    def partition(self, exported_program):
        return self.result


class Raising(Partitioner):
    def partition(self, exported_program):
        raise KeyError("gone")


class Returning(Partitioner):
    def partition(self, exported_program):
        return exported_program


@pytest.mark.parametrize(
    ("partitioner", "fault"),
    [
        (
            ByIndex(one=(0, 1), two=(1, 2)),
            r"parts 'one' and 'two' overlap.*\n  add = aten.add.Tensor   .*z = y \+ b",
        ),
        (Raising(), "the partitioner Raising raised KeyError: 'gone'\n  the program is unchanged"),
        (Returning(), "the partitioner Returning returned ExportedProgram"),
        (Result(None, {}), "the partitioner Result returned PartitionResult without a program"),
        (Result(to_edge(export(Foo(), ARGS)).exported_program(), {"a": DEMO}), "do not map to a"),
        (ByIndex(one=(1, 3)), r"part 'one' makes a cycle.*\n.*sub = aten.sub.Tensor.*a = z - a"),
        (ByIndex(one=(0, 3), two=(1, 4)), "makes a cycle"),
        (Changing(), "the partitioner Changing changed the graph"),
        (Unknown(), r"the tag 'gone'.*\n.*sub = aten.sub.Tensor   .*a = z - a"),
        (Tagging(aten.mm.default, backend_id="nobody"), "no backend 'nobody'"),
    ],
)
def test_bad_partitions_are_errors(foo, partitioner, fault) -> None:
    before = [(str(n), n.meta.get("delegation_tag")) for n in foo.exported_program().graph.nodes]
    with pytest.raises(DelegationError, match=fault):
        foo.to_backend(partitioner)
    after = [(str(n), n.meta.get("delegation_tag")) for n in foo.exported_program().graph.nodes]
    assert after == before


def test_a_part_with_a_number_as_result_is_an_error() -> None:
    class Sized(torch.nn.Module):
        def forward(self, x):
            return x.reshape(x.shape[0] * 2, -1)

    exported = export(Sized(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("rows")},))
    with pytest.raises(DelegationError, match="results that are not tensors"):
        to_edge(exported).to_backend(Tagging(aten.sym_size.int))
