"""Every op of torch that writes to a tensor has a plain form, or is left to torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx import convert
from coreai_onnx.export.functionalize.plain_ops import plain_arguments, plain_form
from tests.lower.checking import check

aten = torch.ops.aten
X = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.5
WITHOUT = """
    _fill_mem_eff_dropout_mask_ _index_put_impl_.hacked_twin _no_grad_fill_ _no_grad_normal_
    _no_grad_uniform_ _no_grad_zero_ _sobol_engine_ff_ _sobol_engine_initialize_state_
    _sobol_engine_scramble_ copy_.Tensor copy_.float copy_.int fill_diagonal_ requires_grad_
    set_.source_Tensor_storage_offset shallow_copy_data_
"""
"""In-place ops that have no op of the same arguments: torch itself makes them functional.
The last one is of torch 2.15."""


def in_place_ops() -> list[torch._ops.OpOverload]:
    """Return the overloads that change their first tensor and nothing else."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        one = written.count(True) == 1 and written[0] and name.endswith("_")
        if space == "aten" and one and str(schema.arguments[0].type) == "Tensor":
            found.append(getattr(getattr(aten, name), schema.overload_name or "default"))
    return found


def test_every_in_place_op_has_a_plain_form_of_the_same_types() -> None:
    ops = in_place_ops()
    assert len(ops) > 200
    without = {str(op)[5:].removesuffix(".default") for op in ops if plain_form(op) is None}
    there = {str(op)[5:].removesuffix(".default") for op in ops}
    assert without == set(WITHOUT.split()) & there
    for op in ops:
        plain = plain_form(op)
        if plain is not None:
            assert not plain._schema.is_mutable
            types = [sorted(str(a.type) for a in o._schema.arguments) for o in (op, plain)]
            assert types[0] == types[1], op


def test_ops_that_write_to_out_have_the_plain_form_of_the_same_types() -> None:
    for name in ("add.out", "div.out", "mv.out", "clamp_min.Tensor_out", "polygamma.out"):
        packet, overload = name.split(".")
        op = getattr(getattr(aten, packet), overload)
        plain = plain_form(op)
        assert plain is not None
        types = [str(a.type) for a in op._schema.arguments if not a.is_out]
        assert types == [str(a.type) for a in plain._schema.arguments]
    assert plain_form(aten.topk.values) is None  # two tensors are written


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 0).pow_(-0.5),
        lambda x: (x + 0).pow_(x),
        lambda x: x.sum(1).pow_(-0.5).masked_fill_(x.sum(1) > 4, 0.0),
        lambda x: x.double().float_power_(2),
        lambda x: x.double().float_power_(x.double()),
        lambda x: (x + 0).ldexp_(torch.tensor(2)),
        lambda x: (x + 0).floor_divide_(x * 0.3),
        lambda x: (x + 0).fill_diagonal_(3.0),
        lambda x: (x + 0).polygamma_(1),
        lambda x: torch.div(x, 2, out=x + 0),
        lambda x: torch.div(x.int(), 2, out=x + 0),
        lambda x: torch.mv(x, x[0], out=torch.zeros(4)) + 1,
        lambda x: torch.mv(x, x[0], out=torch.zeros(3, 4)[1]),
        lambda x: torch.nn.functional.dropout(x + 0, 0.5, training=False, inplace=True),
        lambda x: torch.nn.functional.alpha_dropout(x + 0, 0.5, training=False, inplace=True),
    ],
)
def test_overloads_of_other_names(function: Callable[[torch.Tensor], Any]) -> None:
    check(function, X)


def test_arguments_are_reordered_and_defaults_are_filled_in() -> None:
    plain = aten.polygamma.default
    assert plain_arguments(plain, aten.polygamma_.default, (X, 2), {}) == ((2, X), {})
    drawn = plain_arguments(aten.bernoulli.p, aten.bernoulli_.float, (X,), {})
    assert drawn == ((X, 0.5), {"generator": None})
    assert plain_arguments(aten.add.Tensor, aten.add_.Tensor, (X, 2), {}) == ((X, 2), {})
    divided = plain_arguments(aten.div.Tensor, aten.div.out, (X, 2), {"out": X})
    assert divided == ((X, 2), {})


@pytest.mark.filterwarnings("ignore::coreai_onnx.errors.RandomnessWarning")
@pytest.mark.filterwarnings("ignore::coreai_onnx.errors.TrainingModeWarning")
def test_random_masks_of_a_probability() -> None:
    class Draws(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            half = torch.zeros(64, 64).bernoulli_()
            attention = F.scaled_dot_product_attention(x, x, x, dropout_p=0.25)
            return half + 0 * x.sum(), attention

    ones = torch.ones(1, 1, 512, 512)
    half, attention = convert(Draws(), (ones,)).run(ones, kernels=False)
    assert set(half.reshape(-1).tolist()) == {0.0, 1.0}
    assert 0.4 < half.mean() < 0.6
    assert 0.97 < attention.mean() < 1.03
    assert attention.std() > 0.005


@pytest.mark.filterwarnings("ignore::coreai_onnx.errors.TrainingModeWarning")
def test_an_encoder_layer_in_training_mode() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    x = torch.randn(2, 6, 16)
    (actual,) = convert(layer, (x,)).run(x, kernels=False)
    assert actual.shape == x.shape
    assert (actual != convert(layer, (x,)).run(x, kernels=False)[0]).any()


def test_what_is_no_in_place_op_has_none() -> None:
    assert plain_form(aten.add.Tensor) is None
    assert plain_form(len) is None
