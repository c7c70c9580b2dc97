"""Composites called from torch code: eagerly the reference, in an export one node."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.torch_ops import call
from tests.support.externalized import agrees
from tests.support.tolerances import assert_close

HEADS = (torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 6))
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("rms_norm", (torch.randn(2, 5, 8), torch.rand(8)), {"eps": 1e-3}),
    ("rms_norm", (torch.randn(2, 5, 8).half(), torch.rand(8)), {}),
    ("rope", (HEADS[0], torch.randn(2, 1, 5, 4), torch.randn(2, 1, 5, 4)), {"interleaved": 1}),
    ("scaled_dot_product_attention", HEADS, {"is_causal": 1, "softcap": 3.0}),
    ("scaled_dot_product_attention", (*HEADS, None, torch.randn(4)), {"scale": 0.3}),
    ("silu", (torch.randn(3),), {}),
]


class Calls(torch.nn.Module):
    """Calls a composite on the tensors that are given."""

    def __init__(self, name: str, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        super().__init__()
        self.name, self.attributes = name, attributes
        self.present = [x is not None for x in inputs]

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        rest = iter(tensors)
        inputs = [next(rest) if here else None for here in self.present]
        return call(self.name, *inputs, **self.attributes)


@pytest.mark.parametrize(("name", "inputs", "attributes"), CASES)
def test_a_call_is_the_reference_and_one_node(
    name: str, inputs: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    expected = COMPOSITES[name].reference(*inputs, **attributes)
    assert_close(call(name, *inputs, **attributes), expected)
    module = Calls(name, inputs, attributes)
    tensors = tuple(x for x in inputs if x is not None)
    dims = {"tensors": tuple({0: Dim.AUTO} for _ in tensors)}
    program = coreai_onnx.convert(module, tensors, dynamic_shapes=dims)
    assert [n.op_type for n in program.model.graph] == [name]
    agrees(program, module, tensors)
