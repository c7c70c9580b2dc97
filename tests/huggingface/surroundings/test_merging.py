"""Inputs that are computed in the first call of a model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.errors import ConversionError
from coreai_onnx.huggingface.surroundings.merging import compute_inputs_in_first_call
from coreai_onnx.model.checks.violations import violations
from coreai_onnx.runtime.sessions.session import Session
from tests.support.small_models import parse
from tests.support.tolerances import assert_close

HEAD = '<ir_version: 10, opset_import: ["": 21, "own": 1]>'


def model(body: str = "z = Neg(x)") -> ir.Model:
    """Adds the state's last axis to a cache of four axes."""
    return parse(f"""{HEAD}
    agraph (float[b, 1, s, 2] x, float[b, 1, s, 2] cache) => (float[b, 1, s, 2] y)
    {{ n = own.turn(x)  twice = Add(cache, cache)  y = Sub(twice, n) }}
    <domain: "own", opset_import: ["": 21]> turn (x) => (z) {{ {body} }}""")


def first(body: str = "z = Neg(x)") -> ir.Model:
    """Computes the cache: the state's negative times a weight."""
    return parse(f"""{HEAD}
    agraph (float[b, 1, s, 2] x) => (float[b, 1, s, 2] cache)
    <float[2] weight = {{3.0, 5.0}}> {{ n = own.turn(x)  cache = Mul(n, weight) }}
    <domain: "own", opset_import: ["": 21]> turn (x) => (z) {{ {body} }}""")


def test_the_first_call_computes_and_later_calls_take() -> None:
    merged = model()
    compute_inputs_in_first_call(merged, first(), "later", {"cache": "new_cache"})
    assert not violations(merged)
    session = Session(merged, kernels=False)
    x = np.ones((2, 1, 3, 2), np.float32)
    empty, weight = np.zeros((2, 1, 0, 2), np.float32), np.array([3, 5], np.float32)
    y, cache = session.run(x=x, cache=empty, later=np.array([False]))
    assert_close(cache, -x * weight)
    assert_close(y, -2 * x * weight + x)
    again, same = session.run(x=x, cache=x * 7, later=np.array([True]))
    assert_close(same, x * 7)
    assert_close(again, 15 * x)


def test_functions_of_one_name_and_other_bodies() -> None:
    with pytest.raises(ConversionError, match="different functions turn"):
        compute_inputs_in_first_call(model(), first("z = Abs(x)"), "later", {"cache": "new_cache"})
