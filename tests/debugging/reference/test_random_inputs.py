"""Tests of random inputs, and operators whose results are random."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coreai_onnx.debugging.reference.control_flow import draws
from coreai_onnx.debugging.reference.random_inputs import random_array, random_inputs
from coreai_onnx.runtime.sessions.session import Session
from tests.support.small_models import parse

MODEL = """<ir_version: 10, opset_import: ["": 21]>
    agraph (int64[batch, seq] ids, bfloat16[batch, 4] x) => (int64[batch, seq] y, bfloat16[b, 4] z)
    { y = Neg(ids)  z = Identity(x) }"""


def test_inputs_fit_the_signature_and_each_other() -> None:
    made = random_inputs(Session(parse(MODEL), kernels=False))
    assert {name: (x.dtype.name, x.shape) for name, x in made.items()} == {
        "ids": ("int64", (2, 2)),
        "x": ("bfloat16", (2, 4)),
    }
    again = random_inputs(Session(parse(MODEL), kernels=False))
    assert all(np.array_equal(made[name], again[name]) for name in made)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bool", "complex64", "complex32"])
def test_arrays(dtype: str) -> None:
    array = random_array(dtype, (50, 2), np.random.default_rng(0))
    assert array.dtype.name == dtype.replace("complex32", "complex64")
    if array.dtype.kind in "ib":
        assert set(array.reshape(-1).tolist()) == {0, 1}
    else:
        assert array.real.std() > 0.5


ATEN = torch.ops.aten


def test_random_operators() -> None:
    x = torch.ones(2)
    assert draws(ATEN.rand_like.default, (x,), {})
    assert draws(ATEN.dropout.default, (x, 0.5, True), {})
    assert not draws(ATEN.dropout.default, (x, 0.5, False), {})
    assert not draws(ATEN.add.Tensor, (x, x), {})
    assert not draws(len, (x,), {})


def test_attention_draws_for_its_dropout_only() -> None:
    attention = ATEN.scaled_dot_product_attention.default
    q = torch.ones(1, 1, 2, 2)
    assert not draws(attention, (q, q, q), {})
    assert draws(attention, (q, q, q), {"dropout_p": 0.1})
    assert draws(attention, (q, q, q, None, 0.1), {})
