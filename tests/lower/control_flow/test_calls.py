"""Effects, mutation and ``out_dtype`` around ops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch._higher_order_ops.out_dtype import out_dtype

from coreai_onnx.errors import LoweringError
from coreai_onnx.lower import Context, IONames, ProgramLowering
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Value
from tests.lower.checking import check, run_model
from tests.lower.control_flow.test_cond import X
from tests.support.tolerances import assert_close


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    """A library of ops for one test."""
    with torch.library._scoped_library("coreai_calls", "FRAGMENT") as made:
        yield made


def lowered(module: torch.nn.Module, lowerings: dict[str, Any]) -> tuple[Any, set[str]]:
    """Return the model of a decomposed program, and the higher-order ops in it."""
    program = torch.export.export(module, (X,)).run_decompositions({})
    context = Context(opset=23, user_lowerings=lowerings)
    model = ProgramLowering(program, context, IONames()).run().model([], "main")
    return model, {str(n.target) for n in program.graph.nodes if n.op == "call_function"}


def test_an_op_with_effects(library: torch.library.Library) -> None:
    @torch.library.custom_op("coreai_calls::noted", mutates_args=(), device_types="cpu")
    def noted(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    noted.register_fake(torch.empty_like)
    _register_effectful_op(torch.ops.coreai_calls.noted.default, _EffectType.ORDERED)

    class Effects(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return noted(x) * 2

    def lowering(op: OpBuilder, x: Value) -> Value:
        return op.Add(x, 1)

    model, targets = lowered(Effects(), {"coreai_calls.noted.default": lowering})
    assert "with_effects" in targets
    assert [v.name for v in model.graph.inputs] == ["x"]
    assert_close(run_model(model, (X,))[0], (X + 1) * 2)


class Mutates(torch.nn.Module):
    """Calls an op that changes its first argument, a view of a tensor or a whole one."""

    def __init__(self, *, view: bool) -> None:
        super().__init__()
        self.view = view

    def forward(self, x: torch.Tensor) -> Any:
        z = x.clone()
        product = torch.ops.coreai_calls.raise_(z[1:] if self.view else z, x[: 3 - self.view])
        return z, product


def define_raise(library: torch.library.Library) -> None:
    library.define("raise_(Tensor(a!) x, Tensor y) -> Tensor")

    def compute(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * y

    library.impl("raise_", compute, "CPU")
    library.impl("raise_", lambda x, y: torch.empty_like(x), "Meta")


def raise_lowering(op: OpBuilder, x: Value, y: Value) -> tuple[Value, Value]:
    """The result, then the new value of x."""
    new = op.Add(x, 1)
    return op.Mul(new, y), new


def test_an_op_that_mutates_its_argument(library: torch.library.Library) -> None:
    define_raise(library)
    model, targets = lowered(Mutates(view=False), {"coreai_calls.raise_.default": raise_lowering})
    assert "auto_functionalized_v2" in targets
    z, product = run_model(model, (X,))
    assert_close(z, X + 1)
    assert_close(product, (X + 1) * X)


def test_a_mutated_view_is_refused(library: torch.library.Library) -> None:
    define_raise(library)
    with pytest.raises(LoweringError, match="mutates a view"):
        lowered(Mutates(view=True), {"coreai_calls.raise_.default": raise_lowering})


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_out_dtype_does_not_overflow(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return out_dtype(torch.ops.aten.mm.default, torch.int32, x, y)

    x = torch.full((2, 3), 100, dtype=dtype)
    check(function, x, x.T.contiguous())


def test_out_dtype_of_an_elementwise_op() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return out_dtype(torch.ops.aten.mul.Tensor, torch.int32, x, x)

    check(function, torch.tensor([100, -100, 3], dtype=torch.int8))
