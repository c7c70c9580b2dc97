"""The body of the gated delta rule: one scan, for every length and head group."""

from __future__ import annotations

import time

import onnx_ir as ir
import pytest
import torch
import transformers.models.qwen3_next.modeling_qwen3_next as qwen3_next
from hypothesis import given
from hypothesis import strategies as st

from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


def case(length: int, *, batch: int = 2, heads: int = 2, values: int = 4, lanes: int = 4) -> Case:
    key, gate = (batch, heads, length, lanes), (batch, values, length)
    shapes = (key, key, (batch, values, length, 6), gate, gate, (batch, values, lanes, 6))
    return Case("gated_delta_update", shapes, label="body")


@pytest.mark.parametrize("opset", [18, 26])
def test_one_body_serves_every_size(opset: int) -> None:
    model = case(5).model(torch.float32, dynamic=True, opset=opset)
    for other in (case(1), case(70), case(3, batch=1, heads=3, values=3), case(2, lanes=8)):
        inputs = other.inputs(torch.float32)
        assert_close(run_model(model, inputs), other.expected_outputs(inputs))


def test_is_one_scan_of_a_few_nodes() -> None:
    (function,) = case(5).model(torch.float32, dynamic=True).functions.values()
    (scan,) = (n for n in function if n.op_type == "Scan")
    steps = [n.op_type for n in scan.attributes["body"].as_graph()]
    assert sorted(steps) == ["Add", "MatMul", "MatMul", "MatMul", "Mul", "Mul", "Sub"]


def test_gives_what_transformers_gives_over_a_long_sequence() -> None:
    given = case(200, heads=2, values=4, lanes=16)
    inputs = given.inputs(torch.float32)
    *tensors, state = inputs
    assert state is not None
    expected, last = qwen3_next.torch_recurrent_gated_delta_rule(
        *(x.transpose(1, 2) for x in tensors if x is not None),
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    actual = run_model(given.model(torch.float32, dynamic=True), inputs)
    assert_close(actual, [expected, last])


def test_the_cost_is_linear_in_the_length() -> None:
    """Four times the tokens cost less than eight times as much: a square would be sixteen."""
    model = case(5).model(torch.float32, dynamic=True)

    def seconds(length: int) -> float:
        inputs = case(length).inputs(torch.float32)
        found = []
        for _ in range(3):
            start = time.process_time()
            run_model(model, inputs)
            found.append(time.process_time() - start)
        return min(found)

    base = seconds(1)
    assert seconds(8000) - base < 8 * (seconds(2000) - base) + 0.05


def test_dtypes_up_to_float32_share_a_body() -> None:
    texts = {
        ir.to_proto(
            next(iter(case(3).model(d, dynamic=True).functions.values()))
        ).SerializeToString()
        for d in (torch.float32, torch.float16, torch.bfloat16)
    }
    assert len(texts) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_dtypes_are_computed_in_float32(dtype: torch.dtype) -> None:
    some = case(40)
    inputs = some.inputs(dtype)
    wide = [None if x is None else x.float() for x in inputs]
    expected = [x.to(dtype) for x in some.expected_outputs(wide)]
    assert_close(run_model(some.model(dtype, dynamic=True), inputs), expected)


@given(st.tuples(*[st.integers(1, 4)] * 5), st.integers(1, 9), st.booleans(), st.integers(0, 1))
def test_any_sizes(
    sizes: tuple[int, ...],
    length: int,
    state: bool,
    norm: int,
) -> None:
    batch, heads, groups, lanes, columns = sizes
    values = heads * groups
    key, gate = (batch, heads, length, lanes), (batch, values, length)
    last = (batch, values, lanes, columns) if state else None
    some = Case(
        "gated_delta_update",
        (key, key, (batch, values, length, columns), gate, gate, last),
        {"use_qk_l2_norm": norm},
    )
    inputs = some.inputs(torch.float32)
    actual = run_model(some.model(torch.float32, dynamic=True), inputs)
    assert_close(actual, some.expected_outputs(inputs))
