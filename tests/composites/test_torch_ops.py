"""The torch ops: their references, and shapes for torch.export that say the same."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx.composites import COMPOSITES, TORCH_OPS, torch_ops
from coreai_onnx.composites.few_bits import gather_mm_nbits
from coreai_onnx.composites.gated_delta import gated_delta_update
from coreai_onnx.composites.products import gather_mm
from coreai_onnx.composites.torch_ops import call
from tests.composites.matrix import EXPERT_CASES
from tests.support.composite_cases import delta_cases, expert_cases
from tests.support.externalized import agrees
from tests.support.tolerances import assert_close

CHECKS = ("test_schema", "test_faketensor")


@pytest.mark.parametrize("case", list(expert_cases()), ids=str)
def test_gather_mm_computes_its_reference(case) -> None:
    inputs = [*case.inputs(torch.float32), None, None][:4]
    axis = case.attributes.get("num_batch_axes", 0)
    turned = case.attributes.get("transpose_rhs", 0)
    arguments = (*inputs, axis, bool(turned))
    expected = gather_mm(*inputs, num_batch_axes=axis, transpose_rhs=turned)
    assert_close(torch_ops.gather_mm(*arguments), expected)
    torch.library.opcheck(torch_ops.gather_mm, arguments, test_utils=CHECKS)


@pytest.mark.parametrize("case", EXPERT_CASES[::5], ids=str)
def test_gather_mm_nbits_computes_its_reference(case) -> None:
    inputs = [*case.inputs(torch.float32), *[None] * 6][:10]
    expected = gather_mm_nbits(*inputs, **case.attributes)
    arguments = (*inputs, *({"bits": 4, "group_size": 32} | case.attributes).values())
    assert_close(torch_ops.gather_mm_nbits(*arguments), expected)
    torch.library.opcheck(torch_ops.gather_mm_nbits, arguments, test_utils=CHECKS)


@pytest.mark.parametrize("case", list(delta_cases())[:3], ids=str)
def test_gated_delta_update_computes_its_reference(case) -> None:
    inputs = case.inputs(torch.float16)
    assert_close(torch_ops.gated_delta_update(*inputs), gated_delta_update(*inputs))
    torch.library.opcheck(torch_ops.gated_delta_update, tuple(inputs), test_utils=CHECKS)


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


def _overload(name: str) -> torch._ops.OpOverload:
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


@pytest.mark.parametrize("name", TORCH_OPS)
def test_an_op_of_a_declaration_has_its_inputs_and_then_its_attributes(name: str) -> None:
    composite = TORCH_OPS[name]
    arguments = _overload(name)._schema.arguments
    tensors, numbers = arguments[: len(composite.inputs)], arguments[len(composite.inputs) :]
    assert all("Tensor" in str(a.type) for a in tensors)
    assert [a.name for a in numbers] == [a.name for a in composite.attributes]


@pytest.mark.parametrize("name", ["gather_mm", "gather_mm_nbits", "gated_delta_update"])
def test_the_schema_of_an_op_is_the_declaration(name: str) -> None:
    composite, arguments = COMPOSITES[name], _overload(f"coreai.{name}.default")._schema.arguments
    assert [a.name for a in arguments] == [x.name for x in composite.inputs + composite.attributes]
    defaults = [None if x.optional else inspect.Parameter.empty for x in composite.inputs]
    defaults += [a.default for a in composite.attributes]
    assert defaults == [
        a.default_value if a.has_default_value() else inspect.Parameter.empty for a in arguments
    ]
