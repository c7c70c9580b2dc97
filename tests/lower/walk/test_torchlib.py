"""torchlib's functions as lowerings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from coreai_onnx.lower import Context, IONames, ProgramLowering
from coreai_onnx.lower.walk import torchlib, walker
from coreai_onnx.lower.walk.torchlib import _functions
from tests.lower.checking import Wrapped, run_model
from tests.support.tolerances import assert_close

X = torch.randn(3, 4)
INDEX = torch.tensor([[0, 1, 3, 2]] * 3)


def by_torchlib(
    function: Callable[..., Any], *args: torch.Tensor, dynamic: bool = False
) -> list[str]:
    """Assert that torchlib alone gives torch's numbers; return the ops it lowered."""
    shapes = (({0: Dim("batch")},) * len(args),) if dynamic else None
    program = torch.export.export(Wrapped(function), args, dynamic_shapes=shapes)
    targets = {n.target for n in program.graph.nodes if n.op == "call_function"}
    ops = [t for t in targets if isinstance(t, torch._ops.OpOverload) and str(t) in _functions()]
    context = Context(opset=23, user_lowerings={str(t): torchlib.lowering(t) for t in ops})  # type: ignore[misc]  # none is None
    model = ProgramLowering(program, context, IONames()).run().model([], "main")
    samples = [args, [torch.cat([a, a]) for a in args]] if dynamic else [args]
    for sample in samples:
        wanted = [x for x in pytree.tree_leaves(function(*sample)) if x is not None]
        for got, want in zip(run_model(model, sample), wanted, strict=True):
            assert_close(got, want)
    return [str(t) for t in ops]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("aten.add.Tensor", lambda x: x + 2),
        ("aten.sum.dim_IntList", lambda x: x.sum(1)),
        ("aten.amax.default", lambda x: x.amax(1)),
        ("aten.topk.default", lambda x: x.topk(2)),
        ("aten.roll.default", lambda x: x.roll(1, 0)),
        ("aten.permute.default", lambda x: x.permute(1, 0)),
        ("aten.addbmm.default", lambda x: torch.addbmm(X[0].diag(), x[:, :, None], x[:, None])),
        ("aten.cumsum.default", lambda x: x.cumsum(1)),
        ("aten.scatter.src", lambda x: x.scatter(1, INDEX, x * 2)),
        ("aten.index.Tensor", lambda x: x[:, [0, 2]]),
        ("aten.max_pool2d.default", lambda x: torch.nn.functional.max_pool2d(x[None], 2)),
        ("aten.tril.default", lambda x: x.tril()),
        ("aten.bilinear.default", lambda x: torch.bilinear(x, x, torch.ones(2, 4, 4), None)),
    ],
)
def test_a_function_of_torchlib(name: str, function: Callable[..., Any]) -> None:
    assert name in by_torchlib(function, X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(x.shape[0] * 2, 2),
        lambda x: x[None].expand(2, x.shape[0], 4),
        lambda x: x.softmax(-1) @ x.mT,
        lambda x: torch.cat([x, x.new_zeros(x.shape[0], 1)], 1),
    ],
)
def test_symbolic_sizes(function: Callable[..., Any]) -> None:
    by_torchlib(function, X, dynamic=True)


def test_operands_of_two_dtypes_are_promoted() -> None:
    by_torchlib(lambda x, i: (x * i, i + 1.5), X, INDEX)


def test_an_op_torchlib_does_not_know() -> None:
    assert torchlib.lowering(torch.ops.aten.linalg_ldl_factor.default) is None


def test_the_walker_falls_back_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for an op that has neither a lowering nor a decomposition."""
    monkeypatch.setattr(walker, "builtin_lowering", lambda *_, **__: None)
    monkeypatch.setattr(walker, "decompose", lambda _: None)
    program = torch.export.export(Wrapped(lambda x: x.exp().amin(1)), (X,))
    model = ProgramLowering(program, Context(opset=23), IONames()).run().model([], "main")
    assert_close(run_model(model, (X,))[0], X.exp().amin(1))


def test_the_table_is_built_once() -> None:
    assert _functions() is _functions()
    assert len(_functions()) > 400
