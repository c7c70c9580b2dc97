"""Programs that are exported already."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.export import Dim

from coreai_onnx import TorchConverter, compare, convert
from coreai_onnx.errors import AliasedInputsWarning, StagingError

X = torch.randn(2, 4)
LAYER = torch.nn.Linear(4, 3)


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(LAYER, (X,), dynamic_shapes=({0: Dim("rows")},))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), None), (X, None), ((torch.randn(7, 4),), None), ((), {"input": X})],
)
def test_a_program_needs_no_arguments(args: Any, kwargs: Any) -> None:
    program = convert(exported(), args, kwargs)
    for reference in (LAYER, exported()):
        compare(program, reference, (torch.randn(5, 4),)).assert_close()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((X, X), "2 arguments for 1 inputs"),
        (X.double(), r"input is torch.float32 \[s\d+, 4\], not torch.float64 \[2, 4\]"),
        (torch.randn(2, 5), r"not torch.float32 \[2, 5\]"),
        (torch.randn(4), r"not torch.float32 \[4\]"),
        (3.0, "not a float"),
    ],
)
def test_arguments_that_do_not_fit(args: Any, text: str) -> None:
    with pytest.raises(StagingError, match=text):
        convert(exported(), args)


@pytest.mark.parametrize(
    "options",
    [
        {"dynamic_shapes": ({0: "n"},)},
        {"strict": True},
        {"externalize_modules": "auto"},
        {"prefer_deferred_runtime_asserts_over_guards": True},
    ],
)
def test_options_that_come_too_late(options: Any) -> None:
    with pytest.raises(StagingError, match=f"already exported: {next(iter(options))} cannot"):
        convert(exported(), **options)


def test_a_module_is_no_program() -> None:
    with pytest.raises(StagingError, match=r"a Linear is not a torch\.export\.ExportedProgram"):
        TorchConverter().add_exported_program(LAYER)  # type: ignore[arg-type]


def test_a_program_without_values() -> None:
    empty = torch.export.export(torch.nn.Linear(4, 3, device="meta"), (X.to("meta"),))
    with pytest.raises(StagingError, match=r"without values .*: weight, bias"):
        convert(empty)


def test_inputs_that_were_one_tensor_when_the_user_exported() -> None:
    module = torch.nn.Bilinear(4, 4, 3)
    with pytest.warns(AliasedInputsWarning, match="one tensor as 'input2' and 'input1'") as caught:
        convert(torch.export.export(module, (X, X)))
    assert caught[0].filename == __file__
    with pytest.warns(AliasedInputsWarning, match="x.clone"):
        TorchConverter().add_pytorch_module(
            module, export_fn=lambda m: torch.export.export(m, (X, X))
        )


def test_inputs_of_their_own_are_no_reason_to_warn() -> None:
    class Ignores(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * 2

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(torch.export.export(torch.nn.Bilinear(4, 4, 3), (X, X.clone())))
        convert(torch.export.export(Ignores(), (X, X.clone())))
        convert(torch.nn.Bilinear(4, 4, 3), (X, X))
