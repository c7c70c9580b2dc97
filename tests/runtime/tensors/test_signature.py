"""What a call is checked against."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import onnxruntime as ort
import pytest

from coreai_onnx.errors import InputError
from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.model.metadata import Relation
from coreai_onnx.runtime.tensors.signature import Range, Signature
from tests.support.small_models import add_model, cache_model, counter_model


def of(model: Any) -> Signature:
    return Signature.of(ort.InferenceSession(to_proto(model).SerializeToString()))


def with_dims(*inputs: tuple[str, tuple[int | str | None, ...]], **ranges: Range) -> Signature:
    infos = tuple(TensorInfo(name, "float32", dims) for name, dims in inputs)
    return Signature(infos, (), (), {}, frozenset(), ranges)


def check(signature: Signature, **shapes: tuple[int, ...]) -> None:
    signature.check({name: ("float32", shape) for name, shape in shapes.items()}, frozenset())


def test_inputs_states_and_outputs_of_a_session() -> None:
    signature = of(counter_model())
    assert [str(info) for info in signature.inputs] == ["x: float32[n]"]
    assert [str(info) for info in signature.outputs] == ["y: float32[n]"]
    assert {name: str(info) for name, info in signature.state_inputs.items()} == {
        "count": "count: float32[1]"
    }
    assert not signature.required_states
    assert of(counter_model(initial=False)).required_states == {"count"}


def test_arguments_are_bound_by_position_and_name() -> None:
    signature = of(add_model())
    assert signature.bind((1,), {"mask": 2}) == {"ids": 1, "mask": 2}
    assert of(counter_model()).bind((1,), {"count": 2}) == {"x": 1, "count": 2}


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((1, 2, 3), {}, "3 positional inputs given, 2 expected"),
        ((1,), {"ids": 1}, "input 'ids' is given twice"),
        ((1,), {"masc": 1}, "unexpected input 'masc'"),
    ],
)
def test_wrong_names(args: tuple[int, ...], named: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        of(add_model()).bind(args, named)
    assert str(caught.value).startswith(message)
    assert "  expected  ids: int64[batch, seq]\n  expected  mask: float32[batch, seq]" in str(
        caught.value
    )


def test_all_missing_inputs_are_named() -> None:
    with pytest.raises(InputError, match="missing inputs 'ids', 'mask'"):
        of(add_model()).require(())
    with pytest.raises(InputError, match="missing input 'count'"):
        of(counter_model(initial=False)).require(("x",))
    of(counter_model()).require(("x",))


def test_fixed_dims() -> None:
    signature = with_dims(("x", (2, None)))
    check(signature, x=(2, 7))
    with pytest.raises(InputError) as caught:
        check(signature, x=(3, 7))
    assert str(caught.value) == (
        "input 'x': dimension 0 is 3, expected 2\n"
        "  got       float32[3, 7]\n  expected  float32[2, ?]"
    )


def test_rank_and_dtype() -> None:
    signature = with_dims(("x", ("n",)))
    with pytest.raises(InputError, match=r"input 'x': rank is 2, expected 1"):
        check(signature, x=(1, 1))
    with pytest.raises(
        InputError, match=r"dtype is int64, expected float32(.|\n)*tensor.to\(torch.float32\)"
    ):
        signature.check({"x": ("int64", (1,))}, frozenset())


def test_a_symbolic_dim_has_one_size_everywhere() -> None:
    signature = with_dims(("a", ("batch", "seq")), ("b", ("batch", "seq")))
    check(signature, a=(2, 3), b=(2, 3))
    with pytest.raises(
        InputError, match=r"input 'b': dimension 1 is 4, expected seq = 3 \(from 'a'\)"
    ):
        check(signature, a=(2, 3), b=(2, 4))
    square = with_dims(("a", ("n", "n")))
    with pytest.raises(InputError, match=r"dimension 1 is 4, expected n = 3 \(from 'a'\)"):
        check(square, a=(3, 4))


def test_expressions_of_dims_are_checked_when_their_names_are_known() -> None:
    signature = with_dims(("mask", ("past + seq",)), ("x", ("seq",)), ("cache", ("past",)))
    check(signature, mask=(5,), x=(2,), cache=(3,))
    with pytest.raises(
        InputError, match=r"input 'mask': dimension 0 is 4, expected past \+ seq = 5"
    ):
        check(signature, mask=(4,), x=(2,), cache=(3,))
    alone = with_dims(("a", ("2*k",)), ("b", ("2*k",)))
    check(alone, a=(4,), b=(4,))
    with pytest.raises(InputError, match=r"expected 2\*k = 4 \(from 'a'\)"):
        check(alone, a=(4,), b=(6,))


def test_bounds_name_the_input_and_the_bound() -> None:
    signature = with_dims(("x", ("batch",)), batch=Range(2, 8))
    check(signature, x=(2,))
    check(signature, x=(8,))
    for size in (1, 9):
        with pytest.raises(
            InputError,
            match=rf"input 'x': dimension 0 \(batch\) is {size}, expected between 2 and 8",
        ):
            check(signature, x=(size,))


def test_bounds_are_read_from_the_metadata() -> None:
    ranges = of(add_model({"batch": {"min": 1, "max": 8}, "seq": {"min": 2, "max": None}})).ranges
    assert ranges == {"batch": Range(1, 8), "seq": Range(2, None)}


@pytest.mark.parametrize(
    ("bounds", "text", "inside", "outside"),
    [
        (Range(1, 8), "between 1 and 8", (1, 8), (0, 9)),
        (Range(2, None), "at least 2", (2, 99), (1,)),
        (Range(None, 4), "at most 4", (0, 4), (5,)),
    ],
)
def test_ranges(
    bounds: Range, text: str, inside: tuple[int, ...], outside: tuple[int, ...]
) -> None:
    assert str(bounds) == text
    assert all(size in bounds for size in inside)
    assert not any(size in bounds for size in outside)
    assert bounds.nearest(outside[0]) in inside


def test_example_sizes_respect_bounds_and_expressions() -> None:
    signature = with_dims(("x", ("batch", "2*batch", "seq", "min(a, b)")), batch=Range(3, 8))
    sizes = signature.example_sizes({"seq": 7}, 2)
    assert sizes == {"seq": 7, "batch": 3, "2*batch": 6, "min(a, b)": 2}


def test_a_carried_state_that_no_longer_fits_says_so() -> None:
    signature = of(cache_model())
    given = {"x": ("float32", (2, 1)), "cache": ("float32", (3, 4))}
    with pytest.raises(
        InputError, match=r"state 'cache', carried from the call before(.|\n)*reset\(\)"
    ):
        signature.check(given, frozenset({"cache"}))


def test_a_name_is_read_from_a_derived_dim() -> None:
    """No dim is ``seq`` by itself: its bounds, and dims made of it, are checked all the same."""
    signature = with_dims(("a", ("2*seq",)), ("b", ("seq + 1",)), seq=Range(2, 9))
    check(signature, a=(6,), b=(4,))
    with pytest.raises(
        InputError, match=r"input 'a': dimension 0 is 5, but no integer seq gives 2\*seq = 5"
    ):
        check(signature, a=(5,), b=(4,))
    with pytest.raises(InputError, match=r"dimension 0 is 5, expected seq \+ 1 = 4"):
        check(signature, a=(6,), b=(5,))
    with pytest.raises(
        InputError, match=r"dimension 0 is 20, so that seq is 10, expected between 2 and 9"
    ):
        check(signature, a=(20,), b=(11,))


def test_conditions_name_sizes_inputs_and_the_line() -> None:
    signature = replace(
        with_dims(("a", ("n", 2)), ("b", ("m",)), ("c", (None,))),
        relations=(Relation("(n % 4) == 0"), Relation("2*n >= m", "model.py:7")),
    )
    check(signature, a=(4, 2), b=(8,), c=(1,))
    with pytest.raises(InputError) as caught:
        check(signature, a=(6, 2), b=(8,), c=(1,))
    assert str(caught.value).startswith(
        "input 'a': n is 6 (dimension 0 of 'a'); expected (n % 4) == 0\n"
        "  got       float32[6, 2]\n  expected  float32[n, 2]"
    )
    with pytest.raises(InputError) as caught:
        check(signature, a=(4, 2), b=(9,), c=(1,))
    assert str(caught.value).startswith(
        "input 'b': n is 4 (dimension 0 of 'a'), m is 9 (dimension 0 of 'b'); expected 2*n >= m\n"
    )
    assert str(caught.value).endswith("  asked for by model.py:7")


def test_conditions_are_read_from_the_metadata() -> None:
    model = add_model()
    model.metadata_props["coreai.relations"] = json.dumps(
        [{"holds": "batch == seq", "source": "m.py:1"}, {"holds": "unknown == 3"}]
    )
    signature = of(model)
    assert signature.relations == (Relation("batch == seq", "m.py:1"), Relation("unknown == 3"))
    signature.check({"ids": ("int64", (2, 2))}, frozenset())
    with pytest.raises(InputError, match="batch is 2"):
        signature.check({"ids": ("int64", (2, 3))}, frozenset())
