"""Every in-place op of torch has the plain form that takes the same, or is left to torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from coreai_onnx.export.functionalize.plain_ops import plain_form
from tests.lower.checking import check

aten = torch.ops.aten
X = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.5
WITHOUT = """
    _fill_mem_eff_dropout_mask_ _index_put_impl_.hacked_twin _no_grad_fill_ _no_grad_normal_
    _no_grad_uniform_ _no_grad_zero_ _sobol_engine_ff_ _sobol_engine_initialize_state_
    _sobol_engine_scramble_ bernoulli_.float copy_.Tensor copy_.float copy_.int fill_diagonal_
    polygamma_ requires_grad_ set_.source_Tensor_storage_offset shallow_copy_data_
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
            types = [[str(a.type) for a in o._schema.arguments] for o in (op, plain)]
            assert types[0] == types[1], op


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
        lambda x: torch.nn.functional.dropout(x + 0, 0.5, training=False, inplace=True),
        lambda x: torch.nn.functional.alpha_dropout(x + 0, 0.5, training=False, inplace=True),
    ],
)
def test_overloads_of_other_names(function: Callable[[torch.Tensor], Any]) -> None:
    check(function, X)


def test_what_is_no_in_place_op_has_none() -> None:
    assert plain_form(aten.add.Tensor) is None
    assert plain_form(aten.add.out) is None
    assert plain_form(len) is None
