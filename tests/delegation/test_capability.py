"""Nodes are selected by op, dtype and shape, with reasons for the others."""

from __future__ import annotations

import operator

import pytest
import torch
from torch.export import Dim, export

from coreai_onnx.delegation import CapabilityPartitioner, DelegationSpec, delegates_of, to_edge
from coreai_onnx.errors import DelegationError
from tests.delegation.demo_backend import DEMO
from tests.support.tolerances import assert_close

aten = torch.ops.aten


class Model(torch.nn.Module):
    def forward(self, x):
        small = (x.sin() + 1).cos()
        wide = x.double().sin()
        return small, wide, torch.cat([small, small]).sin()


def capability(node) -> str:
    if node.target not in (aten.sin.default, aten.cos.default, aten.add.Tensor):
        return f"{node.target} has no kernel"
    value = node.meta["val"]
    if value.dtype != torch.float32:
        return f"{value.dtype} is not supported"
    return "" if value.numel() <= 4 else f"{tuple(value.shape)} is too large"


def test_parts_and_reasons() -> None:
    x = torch.randn(4)
    manager = to_edge(export(Model(), (x,)))
    partitioner = CapabilityPartitioner(DelegationSpec(DEMO), capability)
    unsupported = partitioner.partition(manager.exported_program()).unsupported
    # torch adds a check of dtypes before a cast
    assert {name: why for name, why in unsupported.items() if "_assert" not in name} == {
        "_to_copy": "aten._to_copy.default has no kernel",
        "sin_1": "torch.float64 is not supported",
        "cat": "aten.cat.default has no kernel",
        "sin_2": "(8,) is too large",
    }
    made = to_edge(export(Model(), (x,))).to_backend(partitioner)
    (delegate,) = delegates_of(made.exported_program())
    assert delegate.processed_bytes == b"aten.sin.default#aten.add.Tensor#aten.cos.default"
    for found, expected in zip(made.finish().run(x), Model()(x), strict=True):
        assert_close(found, expected)


def test_a_part_makes_no_cycle() -> None:
    class Around(torch.nn.Module):
        def forward(self, x):
            y = x.sin()
            return y + torch.cat([y, y])[:4]

    x = torch.randn(4)
    made = to_edge(export(Around(), (x,))).to_backend(
        CapabilityPartitioner(DelegationSpec(DEMO), capability)
    )
    assert len(delegates_of(made.exported_program())) == 2
    assert_close(made.finish().run(x)[0], Around()(x))


class Sizes(torch.nn.Module):
    def forward(self, x):
        values, indices = x.sin().max(1)
        return x.reshape(x.shape[0] * 2, -1).cos(), values.sin(), indices


def everything_but(*names: str):
    def capability(node) -> str:
        return f"no {node.target}" if any(n in str(node.target) for n in names) else ""

    return capability


@pytest.mark.parametrize(
    ("left_out", "refused"),
    [
        ((), []),
        (("view",), [aten.sym_size.int, operator.mul]),
        (("getitem",), []),  # torch keeps the results of an operator with it
        (("max",), []),
        (("mul",), [aten.sym_size.int]),
    ],
)
def test_results_that_are_not_tensors_stay_in_their_part_or_outside(left_out, refused) -> None:
    exported = export(Sizes(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim("rows")},))
    manager = to_edge(exported)
    partitioner = CapabilityPartitioner(DelegationSpec(DEMO), everything_but(*left_out))
    reasons = partitioner.partition(manager.exported_program()).unsupported
    nodes = manager.exported_program().graph.nodes
    found = [n.target for n in nodes if reasons.get(n.name) == "its result is not a tensor"]
    assert found == refused
    finished = manager.to_backend(partitioner).finish()
    for rows in (2, 5):
        x = torch.randn(rows, 4)
        for given, expected in zip(finished.run(x), Sizes()(x), strict=True):
            assert_close(given, expected)


@pytest.mark.parametrize("answer", [None, True])
def test_a_capability_that_returns_no_text_is_an_error(answer) -> None:
    manager = to_edge(export(Model(), (torch.randn(4),)))
    with pytest.raises(DelegationError, match=rf"a string, got {answer} for sin\n  return"):
        manager.to_backend(CapabilityPartitioner(DelegationSpec(DEMO), lambda _: answer))


@pytest.mark.parametrize(
    "make",
    [
        lambda: CapabilityPartitioner(DEMO, lambda _: ""),
        lambda: CapabilityPartitioner(DelegationSpec(DEMO), "relu"),
        lambda: DelegationSpec(3),
        lambda: DelegationSpec(DEMO, ["level"]),
    ],
)
def test_wrong_arguments_are_errors_where_they_are_given(make) -> None:
    with pytest.raises(DelegationError, match=r"CapabilityPartitioner takes|must be a .*, got"):
        make()
