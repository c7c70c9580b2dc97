"""What a user reads when an export fails: whose doing it is, and what helps."""

from __future__ import annotations

import enum
import functools
from typing import Any

import pytest
import torch

from coreai_onnx import convert
from coreai_onnx.errors import ExportError, InternalError
from coreai_onnx.export.capture.failures import export_error
from tests.export.sizes import line_of

X = torch.randn(2, 4)


class Branches(torch.nn.Module):
    """Branches on a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x


class Indexes(torch.nn.Module):
    """Branches on a size that depends on values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[x > 0]
        return rows.sum() if rows.shape[0] > 2 else x.sum()


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (Branches, "if x.sum() > 0:"),
        (Indexes, "return rows.sum() if rows.shape[0] > 2 else x.sum()"),
    ],
)
def test_a_branch_on_values_names_the_line_and_cond(model: Any, code: str) -> None:
    with pytest.raises(ExportError, match=r"torch\.cond") as raised:
        convert(model(), X)
    assert f"at {line_of(model, code)}" in str(raised.value)
    assert not isinstance(raised.value, InternalError)


def test_the_models_own_errors_are_the_models() -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("cache")

    with pytest.raises(ExportError, match="Your model failed to export: 'cache'") as raised:
        convert(Fails(), X)
    assert not isinstance(raised.value, InternalError)


@pytest.mark.parametrize("args", [(X, X), (X.numpy(),), (), (torch.randn(2, 5),)])
def test_arguments_that_a_model_does_not_take_are_no_defect_of_ours(args: Any) -> None:
    with pytest.raises(ExportError, match="Your model failed to export") as raised:
        convert(torch.nn.Linear(4, 4), args)
    assert not isinstance(raised.value, InternalError)


def breaks(*_: Any) -> None:
    raise TypeError("'int' object is not iterable")


@pytest.mark.parametrize(
    ("broken", "stand_in", "place"),
    [
        ("coreai_onnx.export.capture.run.functional", breaks, "capture.py:"),
        ("coreai_onnx.export.functionalize.attributes._holders", lambda _: 5, "attributes.py:"),
    ],
)
def test_our_own_errors_are_ours(
    monkeypatch: pytest.MonkeyPatch, broken: str, stand_in: Any, place: str
) -> None:
    monkeypatch.setattr(broken, stand_in)
    with pytest.raises(InternalError, match="coreai_onnx failed while it exported") as raised:
        convert(torch.nn.ReLU(), X)
    text = str(raised.value)
    assert "TypeError: 'int' object is not iterable" in text
    assert place in text
    assert "please report it" in text


def test_a_function_that_fails_is_no_defect_of_ours() -> None:
    with pytest.raises(ExportError, match="Your model failed to export"):
        convert(functools.partial(torch.mm, X), torch.randn(5, 5))


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("… transformers.cache_utils.DynamicCache …", "register_dynamic_cache_export_support"),
        ("We found a fake tensor in the exported program constant's list.", "tensor.detach()"),
    ],
)
def test_advice(message: str, advice: str) -> None:
    assert advice in str(export_error(RuntimeError(message), after_export=False))
    assert advice not in str(export_error(RuntimeError("another"), after_export=False))


class Kind(enum.Enum):
    """Not a pytree."""

    ONE = 1


@pytest.mark.parametrize(
    ("extra", "name"),
    [(torch.float32, "torch.dtype"), (Kind.ONE, "Kind"), (object(), "object")],
    ids=["dtype", "enum", "object"],
)
def test_an_output_without_a_form_is_named_in_one_line(extra: Any, name: str) -> None:
    class Returns(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x + 1, extra

    with pytest.raises(ExportError) as raised:
        convert(Returns(), (X,))
    first, *rest = str(raised.value).splitlines()
    assert first.startswith("Your model failed to export: forward returns a ")
    assert first.endswith(f"{name}, which has no form in ONNX")
    assert len(rest) == 1
