"""Example arguments: one tensor is one argument, and one tensor given twice is two inputs."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch

from coreai_onnx import compare, convert
from coreai_onnx.debugging.reference.torch_side import Arguments
from coreai_onnx.errors import StagingError
from coreai_onnx.export.capture.arguments import as_arguments, separated

X = torch.randn(2, 4)


class Tells(torch.nn.Module):
    """Gives another result if any two of its tensors are taken for one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.randn(2, 4))
        self.plain = torch.randn(2, 4)

    def forward(self, a: Any, b: Any, *, c: Any, more: Any) -> torch.Tensor:
        return a - 2 * b + 3 * c + 5 * more["rows"][0] + 7 * self.buffer + 11 * self.plain


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        (X, None, ((X,), {})),
        ((X,), None, ((X,), {})),
        ([X, 1], {"k": 2}, ((X, 1), {"k": 2})),
        ({"x": X}, None, ((), {"x": X})),
        (UserDict({"x": X}), {}, ((), {"x": X})),
        (3, None, ((3,), {})),
        (None, None, ((None,), {})),
        ("text", None, (("text",), {})),
        ((), {"x": X}, ((), {"x": X})),
    ],
)
def test_one_call(args: Any, kwargs: Any, expected: Any) -> None:
    assert as_arguments(args, kwargs) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [((), X, "not as a Tensor"), ({1: X}, None, "not as a dict"), ({"x": X}, {"y": X}, "a tuple")],
)
def test_arguments_that_cannot_be_told_apart(args: Any, kwargs: Any, text: str) -> None:
    with pytest.raises(StagingError, match=text):
        as_arguments(args, kwargs)


def test_an_array_is_one_argument() -> None:
    array = X.numpy()
    assert as_arguments(array)[0][0] is array


def test_a_tensor_is_one_argument_of_a_conversion() -> None:
    module = torch.nn.Linear(4, 4)
    for args, kwargs in ((X, None), ({"input": X}, None), ((), {"input": X})):
        program = convert(module, args, kwargs)
        assert [str(size) for size in program.model.graph.inputs[0].shape] == ["2", "4"]
        compare(program, module, (torch.randn(2, 4),)).assert_close()


def test_one_tensor_as_two_inputs() -> None:
    module = torch.nn.Bilinear(4, 4, 3)
    program = convert(module, (X, X))
    compare(program, module, (torch.randn(2, 4), torch.randn(2, 4))).assert_close()


@pytest.mark.parametrize("given", ["same", "views", "own"])
def test_inputs_that_share_memory(given: str) -> None:
    module = Tells()
    a, b, c, d = {
        "same": (X, X, X, X),
        "views": (X, X[:], X[:1], X.T.T),
        "own": (module.buffer, module.plain, module.buffer, module.plain),
    }[given]
    program = convert(module, (a, b), {"c": c, "more": {"rows": [d]}})
    assert [i.name for i in program.model.graph.inputs] == ["a", "b", "c", "more_rows_0"]
    other = torch.randn(4, 2, 4)
    kwargs = {"c": other[2, : len(c)], "more": {"rows": [other[3]]}}
    compare(program, module, Arguments((other[0], other[1]), kwargs)).assert_close()


def test_an_input_that_is_changed_is_no_other_input() -> None:
    class Adds(torch.nn.Module):
        def forward(self, cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            cache.add_(1)
            return x * 2

    program = convert(Adds(), (X, X))
    compare(program, Adds(), (torch.randn(2, 4), torch.randn(2, 4))).assert_close()


def test_separated_tensors_keep_what_they_are() -> None:
    meta, leaf = torch.empty(2, 3, device="meta"), torch.ones(2, requires_grad=True)
    sparse = torch.eye(3).to_sparse()
    zeros, own, dense, number = separated((meta, leaf, sparse, 5))
    assert (zeros.device.type, zeros.shape, own.requires_grad) == ("cpu", (2, 3), True)
    assert own is not leaf
    assert torch.equal(own, leaf)
    assert torch.equal(dense, torch.eye(3))
    assert number == 5
