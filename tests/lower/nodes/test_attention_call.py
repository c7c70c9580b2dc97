"""Attention of any rank: leading dims, groups of heads and masks as torch takes them."""

from __future__ import annotations

import functools
from typing import Any

import onnx_ir as ir
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import coreai_onnx
from coreai_onnx import ExternalizeSpec
from coreai_onnx.composites import COMPOSITES, SDPA
from coreai_onnx.errors import LostCompositesWarning
from coreai_onnx.lower.nodes.attention_call import call_of_module
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.nodes.scope import Names, Scope
from coreai_onnx.lower.nodes.values import Value, maybe_dims, set_dims
from coreai_onnx.runtime import kernels_built
from tests.lower.checking import Wrapped
from tests.support.tolerances import assert_close

NAME = "scaled_dot_product_attention"
Shape = tuple[int, ...]


def check(model: torch.nn.Module, *args: torch.Tensor, opset: int = 23, **options: Any) -> None:
    """Hold one call of attention to torch, on the body and on the kernel."""
    expected = model(*args)
    program = coreai_onnx.convert(model, args, opset_version=opset, **options)
    assert [name.startswith(f"ai.coreai::{NAME}") for name in program.composites()] == [True]
    for kernels in sorted({False, kernels_built()}):
        (actual,) = program.run(*args, kernels=kernels)
        assert_close(actual, expected, message=f"kernels={kernels}")


def tensors(*shapes: Shape) -> list[torch.Tensor]:
    return [torch.randn(shape) for shape in shapes]


def torchs(*, grouped: bool = True, causal: bool = False) -> torch.nn.Module:
    attend = F.scaled_dot_product_attention
    return Wrapped(functools.partial(attend, is_causal=causal, enable_gqa=grouped))


GROUPED = [
    ((8, 5, 4), (2, 7, 4), (2, 7, 6)),
    ((2, 8, 5, 4), (1, 2, 7, 4), (1, 2, 7, 4)),
    ((2, 3, 8, 5, 4), (2, 3, 2, 7, 4), (2, 3, 4, 7, 6)),
    ((3, 2, 8, 5, 4), (2, 2, 7, 4), (3, 1, 2, 7, 4)),
    ((8, 5, 4), (2, 3, 2, 7, 4), (2, 3, 2, 7, 4)),
    ((2, 1, 3, 8, 5, 4), (2, 1, 3, 2, 7, 4), (2, 1, 3, 2, 7, 4)),
]


@pytest.mark.parametrize("shapes", GROUPED, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["open", "causal"])
def test_groups_of_heads_under_any_leading_dims(shapes: tuple[Shape, ...], causal: bool) -> None:
    check(torchs(causal=causal), *tensors(*shapes))


@pytest.mark.parametrize("opset", range(18, 27))
def test_groups_of_heads_in_every_opset(opset: int) -> None:
    check(torchs(), *tensors((1, 2, 8, 16, 32), (1, 2, 2, 64, 32), (1, 2, 2, 64, 32)), opset=opset)


@pytest.mark.parametrize(
    "dims",
    [(5, 7), (8, 5, 7), (3, 1, 5, 7), (1, 8, 5, 7), (2, 1, 1, 5, 7), (2, 3, 8, 5, 7)],
    ids=str,
)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_any_rank(dims: Shape, kind: str) -> None:
    *inputs, mask = tensors((2, 3, 8, 5, 4), (2, 3, 2, 7, 4), (2, 3, 2, 7, 4), dims)
    check(torchs(), *inputs, mask > -1 if kind == "bool" else mask)


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 4), (7, 4), (7, 6)),
        ((5, 4), (2, 3, 7, 4), (3, 7, 4)),
        ((2, 1, 5, 4), (2, 8, 7, 4), (2, 8, 7, 4)),
        ((3, 2, 1, 5, 4), (8, 7, 4), (3, 1, 1, 7, 4)),
        ((2, 8, 5, 4), (1, 8, 7, 4), (2, 1, 7, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("opset", [18, 23])
def test_leading_dims_and_heads_are_broadcast(shapes: tuple[Shape, ...], opset: int) -> None:
    check(torchs(grouped=False), *tensors(*shapes), opset=opset)


@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 2, 8, 5, 4), (0, 2, 2, 7, 4), (0, 2, 2, 7, 4)),
        ((1, 2, 8, 5, 4), (1, 2, 2, 0, 4), (1, 2, 2, 0, 4)),
        ((2, 8, 0, 4), (2, 8, 7, 4), (2, 8, 7, 4)),
    ],
    ids=str,
)
@pytest.mark.parametrize("opset", [18, 23])
def test_sizes_of_zero_are_left_to_plain_ops(shapes: tuple[Shape, ...], opset: int) -> None:
    args, model = tensors(*shapes), torchs(causal=True)
    program = coreai_onnx.convert(model, tuple(args), opset_version=opset)
    (actual,) = program.run(*args, kernels=False)
    assert_close(actual, model(*args))
    assert not program.composites()


@pytest.mark.parametrize("opset", [18, 23])
def test_every_leading_dim_may_be_dynamic(opset: int) -> None:
    shapes = (2, 3, 8, 5, 4), (2, 3, 2, 7, 4), (2, 3, 2, 7, 4), (2, 3, 1, 5, 7)
    args, others = tensors(*shapes), tensors(*((4, 1, *shape[2:]) for shape in shapes))
    lead, model = {0: Dim("batch"), 1: Dim("block")}, torchs()
    queries, keys = Dim("queries"), Dim("keys")
    dims = (lead | {3: queries}, lead | {3: keys}, lead | {3: keys}, lead | {3: queries, 4: keys})
    program = coreai_onnx.convert(model, tuple(args), dynamic_shapes=(dims,), opset_version=opset)
    for given in (args, others):
        for kernels in sorted({False, kernels_built()}):
            (actual,) = program.run(*given, kernels=kernels)
            assert_close(actual, model(*given), message=f"kernels={kernels}")


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("extra", ["plain", "causal", "window", "mask", "sinks"])
def test_the_module_takes_any_leading_dims(lead: Shape, extra: str, opset: int) -> None:
    args: list[Any] = tensors((*lead, 4, 5, 8), (*lead, 2, 7, 8), (*lead, 1, 7, 6))
    if extra in ("mask", "sinks"):
        args.append(torch.randn(*lead, 1, 5, 7) > -1)
    if extra == "sinks":
        args.append(torch.randn(4))
    causal, window = extra in ("causal", "window"), 3 if extra == "window" else 0
    model = Wrapped(SDPA(is_causal=causal, window_size=window))
    check(model, *args, opset=opset, externalize_modules=[ExternalizeSpec(SDPA, NAME)])


def test_a_decomposed_program_keeps_its_groups() -> None:
    args = tuple(tensors((2, 8, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4)))
    exported = torch.export.export(torchs(), args).run_decompositions()
    with pytest.warns(LostCompositesWarning):
        program = coreai_onnx.TorchConverter().add_exported_program(exported).to_onnx()
    (actual,) = program.run(*args, kernels=False)
    assert_close(actual, torchs()(*args))


def called(composite: str, *shapes: tuple[int, ...]) -> tuple[list[str], list[Value]]:
    """Return the op types of the nodes of a call, and its outputs."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 23}, name="main")
    op = OpBuilder(Scope(graph, Names()), 23, CompositeCalls())
    inputs = [
        ir.Value(name=f"i{k}", type=ir.TensorType(ir.DataType.FLOAT)) for k in range(len(shapes))
    ]
    for value, shape in zip(inputs, shapes, strict=True):
        set_dims(value, shape)
    outputs = call_of_module(op, COMPOSITES[composite], inputs, {})
    return [node.op_type for node in graph], outputs


def test_a_composite_is_called_as_it_is_declared() -> None:
    ops, (result,) = called("rms_norm", (2, 5, 8), (8,))
    assert ops == ["rms_norm"]
    assert maybe_dims(result) == (2, 5, 8)


@pytest.mark.parametrize("lead", [(), (2,), (3, 2)])
def test_attention_of_any_rank_is_called_with_rank_4(lead: tuple[int, ...]) -> None:
    ops, (result,) = called(
        "scaled_dot_product_attention", (*lead, 4, 5, 8), (*lead, 2, 7, 8), (*lead, 2, 7, 6)
    )
    assert "scaled_dot_product_attention" in ops
    assert maybe_dims(result) == (*lead, 4, 5, 6)
