"""The written body of attention: which form it takes, and rows without any key."""

from __future__ import annotations

import pytest
import torch

from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

NAME = "scaled_dot_product_attention"
SHAPES = ((2, 4, 5, 8), (2, 4, 9, 8), (2, 4, 9, 8))


def ops(case: Case, dtype: torch.dtype, opset: int) -> set[str]:
    (function,) = case.model(dtype, dynamic=True, opset=opset).functions.values()
    return {node.op_type for node in function.all_nodes()}


def test_onnx_attention_is_used_from_opset_23_on() -> None:
    case = Case(NAME, SHAPES, label="plain")
    assert ops(case, torch.float32, 23) == {"Attention"}
    assert ops(case, torch.float16, 23) == {"Attention", "Cast"}
    assert "Attention" not in ops(case, torch.float32, 22)


def test_narrow_dtypes_are_computed_in_float32_and_float64_is_spelled_out() -> None:
    case = Case(NAME, SHAPES, label="plain")
    assert ops(case, torch.bfloat16, 23) == ops(case, torch.float16, 23)
    assert "Attention" not in ops(case, torch.float64, 23)


def test_sinks_are_spelled_out() -> None:
    case = Case(NAME, (*SHAPES, None, (4,)), label="sinks")
    assert "Attention" not in ops(case, torch.float32, 23)


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("kind", ["bool", "bias"])
def test_a_row_without_a_key_is_zero(kind: str, opset: int) -> None:
    boolean = kind == "bool"
    case = Case(
        NAME, (*SHAPES, (5, 9)), {}, {3: torch.bool} if boolean else {}, label=f"empty_{kind}"
    )
    query, key, value, mask, *_ = inputs = case.inputs(torch.float32)
    assert mask is not None
    mask[2] = False if boolean else float("-inf")
    (actual,) = run_model(case.model(torch.float32, dynamic=True, opset=opset), inputs)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
    assert_close(actual, expected)
    assert not actual[:, :, 2].any()


@pytest.mark.parametrize("opset", [18, 23])
def test_more_queries_than_keys_leave_the_first_rows_empty(opset: int) -> None:
    shapes = ((1, 2, 6, 8), (1, 2, 3, 8), (1, 2, 3, 8))
    case = Case(NAME, shapes, {"is_causal": 1}, label="short_keys")
    inputs = case.inputs(torch.float32)
    (actual,) = run_model(case.model(torch.float32, dynamic=True, opset=opset), inputs)
    assert_close(actual, case.expected(inputs))
    assert not actual[:, :, :3].any()


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("hidden", [0, 3], ids=["all_lowest", "some_hidden"])
def test_a_row_of_the_lowest_number_is_the_mean_of_the_values(
    hidden: int, dtype: torch.dtype, opset: int
) -> None:
    case = Case(NAME, (*SHAPES, (5, 9)), label="lowest")
    query, key, value, mask, *_ = inputs = case.inputs(dtype)
    assert mask is not None
    mask[2], mask[3, 1:] = torch.finfo(dtype).min, torch.finfo(dtype).min
    if hidden:
        mask[2, -hidden:] = float("-inf")
    (actual,) = run_model(case.model(dtype, dynamic=True, opset=opset), inputs)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.float() for x in (query, key, value, mask))
    )
    assert_close(actual, expected.to(dtype))
    mean = value[:, :, : 9 - hidden].float().mean(2)
    if dtype != torch.float16:  # the lowest number of float16 still leaves room for scores
        assert_close(actual[:, :, 2], mean.to(dtype))


TYPES = {2: torch.int64}


def case(length: int, position: tuple[int, ...] = (), *, batch: int = 2, places: int = 9) -> Case:
    shapes = ((batch, 3, places, 4), (batch, 3, length, 4), position)
    return Case("kv_cache_update", shapes, {}, TYPES, limit=places - length + 1)


@pytest.mark.parametrize(("opset", "op_type"), [(23, "ScatterND"), (24, "TensorScatter")])
def test_which_op_writes(opset: int, op_type: str) -> None:
    (function,) = case(2).model(torch.float32, dynamic=True, opset=opset).functions.values()
    assert op_type in {n.op_type for n in function}


@pytest.mark.parametrize("opset", [18, 24])
@pytest.mark.parametrize("position", [(), (2,)], ids=["one", "per_row"])
def test_one_body_serves_every_size(position: tuple[int, ...], opset: int) -> None:
    model = case(2, position).model(torch.float32, dynamic=True, opset=opset)
    for other in (case(2, position), case(1, position, places=50), case(9, position)):
        inputs = other.inputs(torch.float32)
        assert_close(run_model(model, inputs), other.expected_outputs(inputs))


@pytest.mark.parametrize("opset", [18, 24])
def test_a_place_behind_the_cache_is_an_error(opset: int) -> None:
    some = case(2)
    inputs = [*some.inputs(torch.float32)[:2], torch.tensor(8)]
    with pytest.raises(Exception, match=r"(?i)out of bounds|invalid|exceed"):
        run_model(some.model(torch.float32, dynamic=True, opset=opset), inputs)
