"""What a user reads when an export fails: whose doing it is, and what helps."""

from __future__ import annotations

import copy
import enum
import functools
from typing import Any

import pytest
import torch

from coreai_onnx import TorchConverter, compare, convert
from coreai_onnx.errors import ExportError, InternalError
from coreai_onnx.export.capture.failures import export_error
from coreai_onnx.export.compat.traces import transforms_restored
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
        ("coreai_onnx.export.capture.run.functional", breaks, "run.py:"),
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


class Derivative(torch.nn.Module):
    """A derivative of a function of the input."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.transform(lambda y: (y**2).sum())(x)
        return result


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["grad", "jacrev", "jacfwd", "hessian"])
def test_derivatives_of_torch_func_are_a_limit_of_torch(name: str, strict: bool) -> None:
    model = Derivative(getattr(torch.func, name))
    with pytest.raises(ExportError, match=r"does not trace torch\.func's derivatives") as caught:
        convert(model, (X,), strict=strict)
    assert type(caught.value) is ExportError
    traced = torch.fx.experimental.proxy_tensor.make_fx(model)(X)
    compare(convert(traced, (X,)), model, (X,)).assert_close()


def test_a_program_of_a_derivative_is_refused() -> None:
    with transforms_restored():
        program = torch.export.export(Derivative(torch.func.grad), (X,))
    with pytest.raises(ExportError, match=r"does not trace torch\.func's derivatives"):
        TorchConverter().add_exported_program(program)


class WritesData(torch.nn.Module):
    """Writes to a tensor behind torch's back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.data[0, 0] = 3
        return y


def test_a_write_to_data_under_strict_is_named() -> None:
    with pytest.raises(ExportError, match=r"tensor\.data: write tensor\.detach\(\)"):
        convert(WritesData(), (X,), strict=True)
    compare(convert(WritesData(), (X,)), WritesData(), (X,)).assert_close()


class CountsInAutocast(torch.nn.Module):
    """Changes a tensor inside autocast."""

    def __init__(self, register: bool) -> None:
        super().__init__()
        self.count = torch.zeros(4)
        if register:
            del self.count
            self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.count.add_(1)
        return x + self.count


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects:UserWarning")
@pytest.mark.parametrize("strict", [False, True])
def test_a_tensor_that_changes_inside_autocast_must_be_a_buffer(strict: bool) -> None:
    x = torch.arange(16.0).reshape(4, 4) / 8
    with pytest.raises(ExportError, match=r"the tensor count changes inside torch\.autocast"):
        convert(CountsInAutocast(register=False), (x,), strict=strict)
    model = CountsInAutocast(register=True)
    program = convert(copy.deepcopy(model), (x,), strict=strict)
    session = program.session()
    for _ in range(2):
        torch.testing.assert_close(torch.from_numpy(session.run(x)[0]), model(x))
