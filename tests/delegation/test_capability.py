"""Nodes are selected by op, dtype and shape, with reasons for the others."""

from __future__ import annotations

import torch
from torch.export import export

from coreai_onnx.delegation import CapabilityPartitioner, DelegationSpec, delegates_of, to_edge
from tests.delegation.demo_backend import DEMO
from tests.tolerances import assert_close

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
