"""Calls of composites that make no sense are errors where they are made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coreai_onnx.errors import ConversionError, Where
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.composite_calls import CompositeCalls
from coreai_onnx.lower.nodes.composite_checks import AttributeTypeError, CompositeCallError
from tests.lower.building import Building

F32, F16, I64 = torch.float32, torch.float16, torch.int64
Given = tuple[torch.dtype, tuple[int, ...]] | None


def call(name: str, *inputs: Given, **attributes: Any) -> dict[str, Any]:
    """Call a composite; return what the node carries."""
    building, calls = Building(), CompositeCalls()
    op = OpBuilder(building.op.scope, 23, calls)
    op.scope.where = Where(module="model.attn", source="attn.py:7")
    values = [None if g is None else building.input(f"x{i}", *g) for i, g in enumerate(inputs)]
    op.composite(name, values, **attributes)
    return dict(calls.calls[0].attributes)


def f(*dims: int) -> Given:
    return (F32, dims)


Q, K = f(2, 4, 5, 8), f(2, 2, 9, 8)
SDPA = "scaled_dot_product_attention"
WRONG: dict[str, tuple[str, tuple[Given, ...], dict[str, Any], str]] = {
    "heads": (
        SDPA,
        (Q, f(2, 3, 9, 8), f(2, 3, 9, 8)),
        {},
        "heads must be a multiple of key",
    ),
    "value_heads": (SDPA, (Q, K, f(2, 3, 9, 8)), {}, "a multiple of value .3."),
    "rank": (SDPA, (f(4, 5, 8), K, K), {}, "query must have rank 4, got 3"),
    "lanes": (SDPA, (Q, f(2, 2, 9, 6), K), {}, r"key has shape \[2, 2, 9, 6\], query \[2, 4, 5, 8"),
    "lengths": (SDPA, (Q, K, f(2, 2, 7, 8)), {}, "dim S of B V|K S E is 7 here and 9 there"),
    "mask": (SDPA, (Q, K, K, f(2, 4, 5, 3)), {}, "attn_mask has shape"),
    "mask_rank": (SDPA, (Q, K, K, f(1, 2, 4, 5, 9)), {}, "more dims than B H T S"),
    "sinks": (SDPA, (Q, K, K, None, f(3)), {}, r"sinks has shape \[3\], query"),
    "alignment": (
        SDPA,
        (Q, K, K),
        {"causal_alignment": "center"},
        "causal_alignment must be one of low",
    ),
    "dtypes": (SDPA, (Q, (F16, (2, 2, 9, 8)), K), {}, "key is float16, query is float32"),
    "missing": (SDPA, (Q, K), {}, "the input value is missing"),
    "odd": ("rope", (f(2, 3, 5, 7),), {}, "must be even and positive, is 7"),
    "odd_dims": ("rope", (f(2, 3, 5, 8),), {"dims": 3}, "must be even and positive, is 3"),
    "rope_rank": ("rope", (f(5, 8),), {}, "input must have rank 3 or 4, got 2"),
    "tables": ("rope", (f(2, 3, 5, 8), f(5, 8), f(5, 8)), {}, "cos has 8 numbers per position"),
    "positions": (
        "rope",
        (f(2, 3, 5, 8), None, None, f(2, 5)),
        {},
        "position_ids must be one of .* got float32",
    ),
    "axes": ("rms_norm", (f(2, 8), f(8)), {"axes": (0,)}, "not the last ones"),
    "axis": ("log_softmax", (f(2, 8),), {"axis": -3}, "axis -3 is out of range"),
    "integers": ("gelu", ((I64, (2, 8)),), {}, "input must be one of .* got int64"),
    "unknown": ("silu", (f(2, 8),), {"beta": 1.0}, r"no attribute beta \(attributes: none\)"),
    "pads": (
        "avg_pool_2d",
        (f(1, 2, 6, 6),),
        {"padding": (1, 1)},
        "padding must have 4 numbers, got 2",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_named_with_its_place(
    case: tuple[str, tuple[Given, ...], dict[str, Any], str],
) -> None:
    name, inputs, attributes, message = case
    with pytest.raises(CompositeCallError, match=message) as caught:
        call(name, *inputs, **attributes)
    assert isinstance(caught.value, ConversionError)
    assert str(caught.value).startswith(f"{name}: ")
    assert "at model.attn   attn.py:7" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "attributes", "message"),
    [
        ("rms_norm", {"eps": "small"}, "attribute 'eps' is of type float, not str"),
        ("rms_norm", {"axes": 1}, "attribute 'axes' is of type ints, not int"),
        ("rms_norm", {"axes": (1.5,)}, "attribute 'axes' is of type ints, not float"),
        ("gelu", {"approximate": 1}, "attribute 'approximate' is of type string, not int"),
        ("log_softmax", {"axis": torch.tensor(1)}, "attribute 'axis' is of type int, not Tensor"),
    ],
)
def test_another_type_is_a_type_error(name: str, attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(AttributeTypeError, match=message) as caught:
        call(name, f(2, 8), **attributes)
    assert isinstance(caught.value, TypeError)


def test_attributes_arrive_typed() -> None:
    found = call("rms_norm", f(2, 8), f(8), axes=(1,), eps=1)
    assert found == {"axes": [-1], "eps": 1.0, "version": 1}
    assert isinstance(found["eps"], float)
    found = call("avg_pool_2d", f(1, 2, 6, 6), kernel_size=(3, 2), ceil_mode=True)
    assert found["kernel_size"] == [3, 2]
    assert found["ceil_mode"] == 1
    assert type(found["ceil_mode"]) is int
    assert "divisor_override" not in found


def test_a_given_mask_is_written_as_used_alone() -> None:
    found = call(
        SDPA, Q, K, K, (torch.bool, (5, 9)), scale=0.5, is_causal=True, window_size=3,
        causal_alignment="upper_left",
    )  # fmt: skip
    assert (found["is_causal"], found["window_size"]) == (0, 0)
    assert found["causal_alignment"] == "lower_right"


def test_what_says_nothing_is_written_as_nothing() -> None:
    assert call("rope", f(2, 3, 5, 8), dims=8)["dims"] == 0
    assert call("rope", f(2, 3, 5, 8), dims=6)["dims"] == 6
    assert call(SDPA, Q, K, K, scale=0.5, window_size=-1)["window_size"] == 0
