"""Passes that rebuild a graph operator by operator."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import _higher_order_ops as control
from torch.export import Dim, export

from coreai_onnx.delegation import ExportPass, ProxyValue, edge_ops, to_edge
from coreai_onnx.delegation.export_pass import inferred
from coreai_onnx.export.compat.torch_names import pytree
from tests.support.tolerances import assert_close

aten = torch.ops.aten


class ReluToSigmoid(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        if op == edge_ops.edge.aten.relu.default:
            op = edge_ops.edge.aten.sigmoid.default
        return super().call_operator(op, args, kwargs, meta)


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.relu() + 1, lambda x: x - 1, (x,))


def targets(program) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if n.op == "call_function"]


def test_an_operator_is_replaced_and_the_rest_keeps_names_and_types() -> None:
    program = to_edge(
        export(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), (torch.randn(2, 3),))
    ).exported_program()
    made = ReluToSigmoid()(program.graph_module).graph_module
    before, after = list(program.graph.nodes), list(made.graph.nodes)
    assert [n.name for n in after[:-2]] == [n.name for n in before[:-2]]
    assert after[-3].meta["val"] is before[-3].meta["val"]
    assert after[-2].target is aten.sigmoid.default
    assert after[-2].meta["val"].shape == (2, 4)
    assert after[-2].meta["stack_trace"] == before[-2].meta["stack_trace"]
    assert targets(program)[-1] == "aten.relu.default", "the given graph is unchanged"


def test_branches_are_rebuilt() -> None:
    x = torch.tensor([1.0, 2.0])
    manager = to_edge(export(Branches(), (x,))).transform([ReluToSigmoid()])
    (y,) = manager.finish().run(x)
    assert_close(y, x.sigmoid() + 1)


def test_sizes_of_new_operators_stay_symbolic() -> None:
    class Doubles(ExportPass):
        def call_operator(self, op, args, kwargs, meta):
            if op != aten.relu.default:
                return super().call_operator(op, args, kwargs, meta)
            assert isinstance(args[0], ProxyValue)
            assert args[0].to_tensor().dtype == torch.float32
            return super().call_operator(aten.cat.default, ([args[0], args[0]],), {}, meta)

    x = torch.randn(3, 2)
    exported = export(torch.nn.ReLU(), (x,), dynamic_shapes=({0: Dim("rows")},))
    manager = to_edge(exported).transform([Doubles()])
    for rows in (1, 5):
        x = torch.randn(rows, 2)
        (y,) = manager.finish().run(x)
        assert_close(y, torch.cat([x, x]))


def test_a_number_is_not_a_tensor() -> None:
    graph = torch.fx.Graph()
    with pytest.raises(TypeError, match="n is a int, not a tensor"):
        ProxyValue(3, graph.placeholder("n")).to_tensor()


def test_an_operator_without_tensors_gets_the_fake_mode_of_its_result() -> None:
    program = export(torch.nn.ReLU(), (torch.randn(2),))
    like = next(iter(program.graph.nodes)).meta["val"]
    made = inferred(aten.zeros.default, ([4],), {}, like=like)
    assert made.shape == (4,)
    assert type(made) is type(like)


class Recorded(ExportPass):
    """Lists the calls of its methods."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def placeholder(self, name, arg, meta):
        self.calls.append(f"placeholder {name} {tuple(arg.shape)}")
        return super().placeholder(name, arg, meta)

    def output(self, results, meta):
        self.calls.append(f"output {len(pytree.tree_leaves(results))}")
        return super().output(results, meta)

    def on_attr(self, attr):
        self.calls.append(f"on_attr {attr.node.target} {attr.to_tensor().dtype}")

    def call_sym(self, target, args, meta):
        self.calls.append(f"call_sym {target.__name__}")
        return super().call_sym(target, args, meta)

    def call_getitem(self, value, key, meta):
        self.calls.append(f"call_getitem {key}")
        return super().call_getitem(value, key, meta)

    def call_cond(self, pred, true_fn, false_fn, inputs, meta):
        self.calls.append(f"call_cond {pred.data.dtype} {len(inputs)}")
        return super().call_cond(pred, true_fn, false_fn, inputs, meta)

    def call_while(self, cond_fn, body_fn, carried_inputs, additional_inputs, meta):
        self.calls.append(f"call_while {len(carried_inputs)}")
        return super().call_while(cond_fn, body_fn, carried_inputs, additional_inputs, meta)

    def call_map(self, f, mapped_args, operands, meta):
        self.calls.append(f"call_map {len(mapped_args)}")
        return super().call_map(f, mapped_args, operands, meta)

    def call_scan(self, combine_fn, init, xs, additional_inputs, meta):
        self.calls.append(f"call_scan {len(init)}")
        return super().call_scan(combine_fn, init, xs, additional_inputs, meta)


class Loops(torch.nn.Module):
    def forward(self, x):
        mapped = control.map(lambda row: row.relu() + 1, x)
        _, looped = control.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y.relu() * 2), (x.sum().long() * 0, mapped)
        )
        total, _ = control.scan(lambda c, y: (c + y.relu(), y + c), looped[0], looped)
        return total


@pytest.mark.parametrize(
    ("module", "shape", "expected"),
    [
        (
            Branches(),
            (2, 3),
            {
                "placeholder x (2, 3)",
                "call_cond torch.bool 1",
                "call_getitem 0",
                "output 1",
            },
        ),
        (Loops(), (2, 3), {"call_map 1", "call_while 2", "call_scan 1", "call_getitem 1"}),
    ],
)
def test_every_kind_of_node_has_a_method(module, shape, expected) -> None:
    x, recorded = torch.randn(shape), Recorded()
    manager = to_edge(export(module, (x,)))
    made = manager.transform([recorded])
    assert expected <= set(recorded.calls)
    assert recorded.calls[-1] == "output 1"
    before, after = manager.exported_program(), made.exported_program()
    assert str(after.graph) == str(before.graph)
    for name, child in before.graph_module.named_children():
        assert str(getattr(after.graph_module, name).graph) == str(child.graph)
    for given in (x, -x):
        assert_close(made.finish().run(given)[0], module(given))


def test_sizes_are_replaced() -> None:
    class Twice(ExportPass):
        def call_sym(self, target, args, meta):
            made = super().call_sym(target, args, meta)
            return (
                super().call_sym(operator.mul, (made, 2), meta) if target is operator.mul else made
            )

    class Sized(torch.nn.Module):
        def forward(self, x):
            return x.new_ones(x.shape[0] * 3)

    recorded, x = Recorded(), torch.randn(4)
    exported = export(Sized(), (x,), dynamic_shapes=({0: Dim("n")},))
    made = to_edge(exported).transform([recorded, Twice()])
    assert "call_sym mul" in recorded.calls
    assert_close(made.finish().run(torch.randn(5))[0], torch.ones(30))


def test_branches_are_replaced() -> None:
    class Swapped(ExportPass):
        def call_cond(self, pred, true_fn, false_fn, inputs, meta):
            return super().call_cond(pred, false_fn, true_fn, inputs, meta)

    class Same(ExportPass):
        def call_cond(self, pred, true_fn, false_fn, inputs, meta):
            return super().call_cond(
                pred, self.call_submodule(true_fn, inputs).graph_module, true_fn, inputs, meta
            )

    x = torch.tensor([1.0, 2.0])
    manager = to_edge(export(Branches(), (x,)))
    assert_close(manager.transform([Swapped()]).finish().run(x)[0], x - 1)
    assert_close(manager.transform([Same()]).finish().run(-x)[0], (-x).relu() + 1)


def test_attributes_are_seen() -> None:
    module = torch.nn.Module()
    module.scale = torch.tensor(2.0)
    graph = torch.fx.Graph()
    graph.output((graph.get_attr("scale"),))
    recorded = Recorded()
    made = recorded(torch.fx.GraphModule(module, graph)).graph_module
    assert recorded.calls == ["on_attr scale torch.float32", "output 1"]
    assert_close(made()[0], module.scale)
