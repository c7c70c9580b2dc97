"""Backends get copies and return bytes; failures are errors with the user's lines."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.export import Dim, export

from coreai_onnx.delegation import (
    BackendDetails,
    CapabilityPartitioner,
    CompileSpec,
    DelegationSpec,
    PreprocessResult,
    backend,
    delegates_of,
    to_backend,
    to_edge,
)
from coreai_onnx.errors import DelegationError
from tests.delegation.demo_backend import DEMO
from tests.support.tolerances import assert_close


class LowerableModule(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x)


def test_an_unknown_backend_is_an_error_that_lists_the_known_ones() -> None:
    edge = to_edge(export(LowerableModule(), (torch.ones(1),))).exported_program()
    with pytest.raises(DelegationError, match=rf"no backend 'other'.*{DEMO}"):
        to_backend("other", edge)


@pytest.mark.parametrize("backend_id", [3, "", None])
def test_the_id_of_a_backend_is_a_text(backend_id) -> None:
    with pytest.raises(DelegationError, match=f"a non-empty string, got {backend_id!r}"):
        backend(backend_id)


def test_what_is_not_a_backend_is_not_registered() -> None:
    with pytest.raises(
        DelegationError, match=r"must be a subclass of BackendDetails, .*\n  derive"
    ):
        backend("delegation.object")(object)


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (
            ValueError("no rule"),
            r"raised ValueError: no rule\n  sin = aten.sin.default   .*sin\(x\)",
        ),
        (None, "returned no processed_bytes, but None"),
        (PreprocessResult("text"), "returned no processed_bytes, but .*text"),
    ],
)
def test_a_backend_that_fails_is_an_error(monkeypatch, result, fault) -> None:
    @backend("delegation.failing")
    class Failing(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            if isinstance(result, Exception):
                raise result
            return result

    edge = to_edge(export(LowerableModule(), (torch.ones(1),))).exported_program()
    with pytest.raises(DelegationError, match=fault):
        to_backend("delegation.failing", edge)


class Linear(torch.nn.Linear):
    """A linear layer and a function, so that a change of either shows."""

    def forward(self, x):
        return super().forward(x).relu()


@backend("delegation.changing")
class Changing(BackendDetails):
    """Changes everything that it is given."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        graph = edge_program.graph
        (relu,) = graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
        relu.replace_all_uses_with(relu.args[0])
        graph.erase_node(relu)
        edge_program.graph_module.recompile()
        for weight in edge_program.state_dict.values():
            weight.data.zero_()
        edge_program.graph_signature.input_specs.clear()
        edge_program.range_constraints.clear()
        compile_specs.clear()
        return PreprocessResult(b"changed")


def test_a_backend_that_changes_its_program_changes_a_copy() -> None:
    module, x = Linear(3, 4), -torch.randn(2, 3).abs()
    expected = module(x).detach()
    assert (expected == 0).any(), "the relu matters"
    edge = to_edge(export(module, (x,), dynamic_shapes=({0: Dim("rows", max=9)},)))
    bounds = dict(edge.exported_program().range_constraints)
    part = to_backend("delegation.changing", edge.exported_program(), [CompileSpec("a", b"b")])
    assert_close(part(x).detach(), expected)
    spec = DelegationSpec("delegation.changing")
    made = edge.to_backend(CapabilityPartitioner(spec, lambda node: ""))
    assert [d.processed_bytes for d in delegates_of(made.exported_program())] == [b"changed"]
    assert_close(made.finish().run(x)[0], expected)
    assert_close(edge.finish().run(x)[0], expected)
    assert edge.exported_program().range_constraints == bounds


@backend("delegation.handles")
class Handles(BackendDetails):
    """Writes the debug handles of operators into the bytes."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        calls = [n for n in edge_program.graph.nodes if n.op == "call_function"]
        handles = [node.meta["debug_handle"] for node in calls]
        return PreprocessResult(
            repr(handles).encode(), debug_handle_map={f"op{h}": (h,) for h in handles}
        )


class Lines(torch.nn.Module):
    def forward(self, x):
        y = x.sin()
        z = y.cos()
        return z.exp().sin()


def test_debug_handles_in_the_bytes_lead_to_lines() -> None:
    edge = to_edge(export(Lines(), (torch.ones(2),)))
    spec = DelegationSpec("delegation.handles")
    made = edge.to_backend(
        CapabilityPartitioner(spec, lambda node: "no" if "exp" in str(node.target) else "")
    )
    module = made.exported_program().graph_module
    parts = [module.lowered_module_0, module.lowered_module_1]
    assert [part.processed_bytes for part in parts] == [b"[1, 2]", b"[4]"]
    assert parts[0].meta == {"debug_handle_map": {"op1": (1,), "op2": (2,)}}
    for part in (*parts, *map(copy.deepcopy, parts)):
        assert part.meta["debug_handle_map"].keys() <= {"op1", "op2", "op4"}
        assert [where.code for where in part.debug_handles.values()] == {
            b"[1, 2]": ["y = x.sin()", "z = y.cos()"],
            b"[4]": ["return z.exp().sin()"],
        }[part.processed_bytes]
    assert pickle.loads(pickle.dumps(parts[1])).meta == parts[1].meta
