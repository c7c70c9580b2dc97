"""Arguments of modules as inputs of sessions, results of modules as arrays."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from coreai_onnx.debugging.reference.torch_side import (
    Arguments,
    arguments_of,
    as_array,
    copied,
    feeds_of,
    leaves_of_result,
)
from coreai_onnx.errors import ComparisonError
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.sessions.session import Session
from tests.support.small_models import add_model, counter_model
from tests.support.tolerances import assert_close

A, B = torch.ones(2, 3, dtype=torch.int64), torch.zeros(2, 3)


class Add(torch.nn.Module):
    def forward(self, ids: Any, mask: Any = None, *, flag: bool = True, **more: Any) -> Any:
        return ids + mask


class Nested(torch.nn.Module):
    def forward(self, pair: Any, scale: float = 1.0) -> Any:
        return pair["a"] + pair["b"][0]


def feeds(module: torch.nn.Module, *args: Any, **kwargs: Any) -> dict[str, object]:
    return feeds_of(Session(add_model(), kernels=False), module, args, kwargs)


def test_kinds_of_input_sets() -> None:
    assert arguments_of((A, B)) == ((A, B), {})
    assert arguments_of(A) == ((A,), {})
    assert arguments_of({"ids": A}) == ((), {"ids": A})
    assert arguments_of(Arguments((A,), {"mask": B})) == ((A,), {"mask": B})


def test_positional_arguments_in_order_whatever_the_inputs_are_called() -> None:
    assert feeds(Add(), A, B) == {"ids": A, "mask": B}


def test_keyword_arguments_by_name_in_any_order() -> None:
    assert feeds(Add(), mask=B, ids=A) == {"ids": A, "mask": B}
    assert feeds(Add(), A, mask=B, flag=False) == {"ids": A, "mask": B}


def test_nested_arguments_are_flattened_and_constants_left_out() -> None:
    assert feeds(Nested(), {"a": A, "b": [B]}, 2.0) == {"ids": A, "mask": B}
    assert feeds(Nested(), {"a": A, "b": [B, None]}) == {"ids": A, "mask": B}


def test_arguments_that_are_states_go_by_name() -> None:
    class Counting(torch.nn.Module):
        def forward(self, count: Any, x: Any) -> Any:
            return x * count

    session = Session(counter_model(), kernels=False)
    found = feeds_of(session, Counting(), (torch.ones(1), torch.ones(4)), {})
    assert {name: tuple(value.shape) for name, value in found.items()} == {"count": (1,), "x": (4,)}


def test_arguments_that_do_not_match() -> None:
    with pytest.raises(ComparisonError, match=r"given ids \(Tensor\)(.|\n)*mask: float32"):
        feeds(Add(), A)


def test_results_of_every_kind_are_flattened() -> None:
    @dataclass
    class Result:
        a: torch.Tensor
        b: torch.Tensor | None
        c: OrderedDict[str, torch.Tensor]

    result = Result(A, None, OrderedDict(x=B)), [A, (B, 3)], {"k": None}
    assert_close(leaves_of_result(result), [A, B, A, B, 3])


def test_model_outputs_of_transformers_are_flattened() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    result = outputs.BaseModelOutput(last_hidden_state=A, hidden_states=(A, B))
    assert_close(leaves_of_result(result), [A, A, B])


def test_numbers_take_the_dtype_of_the_output_and_other_things_are_errors() -> None:
    info = TensorInfo("n", "int64", ())
    assert as_array(3, info).dtype == "int64"
    with pytest.raises(ComparisonError, match="output 'n': the module returned a str"):
        as_array("three", info)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, of weight_norm
def test_a_module_that_holds_a_computed_weight_is_copied() -> None:
    model = torch.nn.utils.weight_norm(torch.nn.Linear(2, 2))
    assert not model.weight.is_leaf
    copy = copied(model)
    assert copy.weight is not model.weight
    assert_close(copy(torch.ones(1, 2)), model(torch.ones(1, 2)))
