"""Functions of a model: shared, named and declared; numbers are in ``tests/composites``."""

from __future__ import annotations

import dataclasses

import onnx
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.bodies import library
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.converter import TorchConverter
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value
from tests.composites.matrix import model_of
from tests.delegation.user_kernels.declared import SCALED
from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.composite_cases import CASES
from tests.support.tolerances import assert_close


def test_one_body_serves_other_shapes() -> None:
    case = next(c for c in CASES if c.label == "causal_gqa")
    model = case.model(torch.float32, dynamic=True, opset=21)
    shapes = ((1, 6, 3, 4), (1, 3, 3, 4), (1, 3, 3, 10))
    other = Case(case.composite, shapes, {**case.attributes, "scale": 8**-0.5})
    inputs = other.inputs(torch.float32)
    (actual,) = run_model(model, inputs)
    assert_close(actual, other.expected(inputs))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_functions_are_declared_named_and_without_overload(case: Case) -> None:
    model = case.model(torch.float32, dynamic=False)
    (function,) = model.functions.values()
    assert function.name == case.composite
    assert function.overload == ""
    assert set(function.attributes) == {
        *(a.name for a in COMPOSITES[case.composite].attributes),
        "version",
    }
    assert all(node.name for node in function.all_nodes())
    assert model.ir_version == 10
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


SILU = Case("silu", ((2, 3),), label="plain")


def names_of(*calls: tuple[Case, torch.dtype]) -> list[str]:
    """Return the names of the functions, then of the calls."""
    model, _ = model_of(calls, 23)
    return [f.name for f in model.functions.values()] + [n.op_type for n in model.graph]


def test_a_dtype_is_a_word_only_beside_another_one() -> None:
    assert names_of((SILU, torch.float64)) == ["silu", "silu"]
    found = names_of((SILU, torch.float64), (SILU, torch.float32), (SILU, torch.float16))
    assert found == ["silu.float64", "silu", "silu.float16"] * 2


def test_a_body_for_two_dtypes_has_neither_in_its_name() -> None:
    shapes = ((2, 5, 16), (16,))
    two_axes = Case("rms_norm", ((2, 4, 8), (4, 8)), {"axes": (-2, -1)}, label="two_axes")
    norm = Case("rms_norm", shapes, label="norm")
    found = names_of((norm, torch.float16), (norm, torch.float32), (two_axes, torch.float32))
    assert found[:2] == ["rms_norm", "rms_norm.axes2"]
    assert found[2:] == ["rms_norm", "rms_norm", "rms_norm.axes2"]


def test_what_has_no_word_is_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "variant_words", lambda *_: [])
    gelu = [Case("gelu", ((2, 3),), {"approximate": a}, label=a) for a in ("none", "tanh")]
    assert names_of(*((g, torch.float32) for g in gelu)) == ["gelu", "gelu.2"] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_constant_of_a_traced_reference_has_the_dtype_of_the_call(dtype: torch.dtype) -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0.3, x * 0.1, 0.7) + torch.full_like(x, 0.2)

    composite = dataclasses.replace(SCALED, attributes=(), reference=reference)
    converter = TorchConverter()

    @converter.register_torch_lowering("aten::tanh.default", allow_override=True)
    def tanh(op: OpBuilder, self: Value) -> Value:
        return op.composite(composite, [self])

    x = torch.randn(4, 5, dtype=dtype)
    program = converter.add_exported_program(torch.export.export(torch.nn.Tanh(), (x,))).to_onnx()
    (actual,) = run_model(program.model, [x])
    assert_close(actual, reference(x))
