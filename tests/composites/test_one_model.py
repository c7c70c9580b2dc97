"""All kinds of calls of a composite in one model: each gets the body, and the name, it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.composites import COMPOSITES
from tests.composites.matrix import ALL_CASES, DTYPES, KERNELS, OPSET, declared, expected, model_of
from tests.lower.checking import run_model
from tests.support.tolerances import assert_close


@pytest.mark.parametrize("name", COMPOSITES)
def test_bodies_stand_beside_each_other(name: str) -> None:
    calls = [(c, d) for c in ALL_CASES if c.composite == name for d in DTYPES]
    for opset in (18, OPSET):
        model, inputs = model_of(calls, opset)
        names = [f.name for f in model.functions.values()]
        assert set(names) <= declared(name)  # none is numbered for want of a word
        assert len(names) == len(set(names))
    assert_close(run_model(model, inputs), expected(calls))


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_kernels_take_every_name(name: str, kernels: Path) -> None:
    calls = [(c, d) for c in ALL_CASES if c.composite == name for d in DTYPES]
    model, inputs = model_of(calls, OPSET)
    model.functions.clear()  # so that nothing but the kernels can run
    assert_close(run_model(model, inputs, library=kernels), expected(calls))


@pytest.mark.parametrize("name", COMPOSITES)
def test_one_body_serves_calls_that_differ_in_numbers_only(name: str) -> None:
    case = next(c for c in ALL_CASES if c.composite == name)
    calls = [(case, DTYPES[0])] * 5
    model, _ = model_of(calls, OPSET)
    assert [f.name for f in model.functions.values()] == [name]
