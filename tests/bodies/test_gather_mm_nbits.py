"""Bodies of gathered products with few-bit weights: chosen matrices are unpacked, one by one."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from tests.composites.expert_cases import EXPERT_CASES
from tests.composites.one_model import model_of
from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


def case(tokens: int, experts: int = 4) -> Case:
    return Case(
        "gather_mm_nbits",
        ((tokens, 1, 1, 64), (experts, 6, 2, 16), (experts, 6, 2), (tokens, 2)),
        {"group_size": 32},
        {1: torch.uint8, 3: torch.int64},
        limit=256,
    )


def inputs_of(some: Case) -> list[torch.Tensor]:
    inputs = [x for x in some.inputs(torch.float32) if x is not None]
    inputs[3] %= inputs[1].shape[0]
    return inputs


def test_one_body_serves_every_number_of_tokens_and_experts() -> None:
    model = case(5).model(torch.float32, dynamic=True)
    for tokens, experts in ((5, 4), (300, 4), (2, 60), (0, 3)):
        other = case(tokens, experts)
        inputs = inputs_of(other)
        assert_close(run_model(model, inputs)[0], other.expected(inputs))


def test_experts_without_tokens_are_not_unpacked() -> None:
    some = case(6)
    inputs = inputs_of(some)
    inputs[3][:] = 2
    inputs[2][[0, 1, 3]] = float("nan")
    (actual,) = run_model(some.model(torch.float32, dynamic=True), inputs)
    assert_close(actual, some.expected(inputs))
    assert np.isfinite(actual).all()


def test_weights_are_read_in_the_loop_only() -> None:
    """Outside of it only the shape of the codes is read; a turn takes the parts of one matrix."""
    (function,) = case(5).model(torch.float32, dynamic=True).functions.values()
    (loop,) = (n for n in function if n.op_type == "Loop")
    for part in function.inputs[1:3]:
        readers = [n for n in part.consumers() if n.op_type != "Shape"]
        assert [n.op_type for n in readers] == ["Gather"]
        assert readers[0].graph is loop.attributes["body"].as_graph()


def test_an_index_outside_is_an_error() -> None:
    some = case(2)
    inputs = inputs_of(some)
    inputs[3][0, 0] = 4
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="bounds"):
        run_model(some.model(torch.float32, dynamic=True), inputs)


def test_a_variant_names_bits_rounding_zeros_and_palette() -> None:
    model, _ = model_of([(c, torch.float32) for c in EXPERT_CASES], 23)
    names = {function.name for function in model.functions.values()}
    wanted = {"gather_mm_nbits", "gather_mm_nbits.bits2_rounded_palette"}
    assert wanted | {"gather_mm_nbits.bits8_rounded_zero_points"} <= names
    assert not any(name.rpartition(".")[2].isdigit() for name in names)
