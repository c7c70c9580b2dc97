"""What a user reads when a dim does not become dynamic."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan
from torch.export import Dim

from coreai_onnx import TorchConverter, compare, convert
from coreai_onnx.errors import DynamicShapesError, ExportError, SpecializationWarning
from coreai_onnx.export.capture.explain import explained, suggested_fixes, warn_about_fixed_dims
from tests.export.sizes import line_of


class Views(torch.nn.Module):
    """x must have 3 rows, and y an even size."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = y.view(-1, 2)
        return x.view(3, 4), rows


ARGS = (torch.randn(3, 4), torch.randn(6))
FIXES = line_of(Views, "return x.view(3, 4), rows")
HALVES = line_of(Views, "rows = y.view(-1, 2)")


def refused(x: Any, y: Any = None, args: Any = ARGS) -> str:
    return refusal(Views(), args, {"x": {0: x}, "y": y and {0: y}})


def refusal(module: torch.nn.Module, args: Any, shapes: Any) -> str:
    """Return what a user reads whose own export fails; `convert` would try other ways."""

    def export(model: torch.nn.Module) -> torch.export.ExportedProgram:
        return torch.export.export(model, args, dynamic_shapes=shapes)

    with pytest.raises(DynamicShapesError) as raised:
        TorchConverter().add_pytorch_module(module, export_fn=export)
    return str(raised.value)


def test_a_dim_that_may_be_fixed_is_a_warning_with_the_line() -> None:
    with pytest.warns(SpecializationWarning) as caught:
        convert(Views(), ARGS, dynamic_shapes={"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}})
    (warning,) = caught
    assert str(warning.message) == (
        "sizes that were to be dynamic are fixed in the converted model:\n"
        f"  dimension 0 of input 'x' is fixed at 3\n    by {FIXES}\n"
        "  make the model independent of the size there, or leave the dim out of dynamic_shapes"
    )
    assert warning.filename == __file__


def test_a_dim_with_a_name_is_an_error_with_the_line() -> None:
    assert refused(Dim("batch")) == (
        "dynamic_shapes asks for more than the model allows\n"
        f"  batch (x.shape[0]) is to be dynamic, but the model fixes it at 3\n    by {FIXES}\n"
        "  torch suggests: batch = 3"
    )


def test_a_dim_that_must_be_dynamic_is_an_error_with_the_line() -> None:
    assert f"x.shape[0] is to be dynamic, but the model fixes it at 3\n    by {FIXES}" in refused(
        Dim.DYNAMIC
    )


def test_a_condition_on_a_dim_is_an_error_with_the_line() -> None:
    text = refused(None, Dim("n"))
    assert f"guard (y.shape[0] % 2) == 0\n    by {HALVES}" in text
    assert "torch suggests: _n = Dim('_n', min=" in text
    assert "n = 2*_n" in text


def test_bounds_that_clash_are_an_error_with_the_line() -> None:
    class Head(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:6] * torch.ones(6)

    text = refusal(Head(), (torch.randn(8),), ({0: Dim("n", max=9)},))
    assert "6 <= x.shape[0]" in text
    assert f"by {line_of(Head, 'return x[:6] * torch.ones(6)')}" in text


def test_sizes_that_must_be_equal_are_an_error_with_the_line() -> None:
    class Adds(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    args = (torch.randn(3), torch.randn(3))
    text = refusal(Adds(), args, ({0: Dim("a")}, {0: Dim("b")}))
    assert "The values of b = y.shape[0] and a = x.shape[0] must always be equal" in text
    assert f"by {line_of(Adds, 'return x + y')}" in text


@pytest.mark.parametrize("size", [0, 1])
def test_an_example_of_size_0_or_1_fixes_a_dim(size: int) -> None:
    class Doubles(torch.nn.Module):
        def forward(self, x: torch.Tensor, more: Any) -> torch.Tensor:
            return x * 2 + more["rows"][0]

    args = (torch.randn(size, 4), {"rows": [torch.randn(size, 4)]})

    def shapes(dim: Any) -> Any:
        return {"x": {0: dim}, "more": {"rows": [{0: dim}]}}

    with pytest.warns(SpecializationWarning) as caught:
        convert(Doubles(), args, dynamic_shapes=shapes(Dim.AUTO))
    text = str(caught[0].message)
    because = f"is fixed at {size} because the example has that size"
    assert f"dimension 0 of input 'x' {because}" in text
    assert f"dimension 0 of input \"more['rows'][0]\" {because}" in text
    assert "give an example of a larger size" in text
    with pytest.raises(DynamicShapesError, match="larger size") as raised:
        convert(Doubles(), args, dynamic_shapes=shapes(Dim.DYNAMIC))
    assert f"the example fixes it at {size}" in str(raised.value)


def test_other_failures_of_an_export_stay_what_they_are() -> None:
    class Breaks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("not today")

    with pytest.raises(ExportError, match="not today") as raised:
        convert(Breaks(), (torch.ones(2),))
    assert not isinstance(raised.value, DynamicShapesError)
    with pytest.raises(DynamicShapesError), explained():
        torch.export.export(Views(), ARGS, dynamic_shapes=({0: Dim("batch")}, None))


def test_programs_that_the_user_exports_warn_when_they_are_added() -> None:
    program = torch.export.export(Views(), ARGS, dynamic_shapes=({0: Dim.AUTO}, None))
    with pytest.warns(SpecializationWarning, match="of input 'x' is fixed at 3"):
        TorchConverter().add_exported_program(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_fixed_dims(torch.export.export(Views(), ARGS))


def test_a_dynamic_model_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = convert(torch.nn.ReLU(), (torch.randn(3),), dynamic_shapes=({0: Dim.AUTO},))
    assert str(program.model.graph.inputs[0].shape[0]) == "input_dim_0"


def test_what_torch_suggests() -> None:
    text = "broken\nSuggested fixes:\n  n = Dim('n', min=2)\n  m = 2*n\n\nThe error above = this"
    assert suggested_fixes(text) == ["n = Dim('n', min=2)", "m = 2*n"]
    assert suggested_fixes("  n = 3") == []


class AssociativeScan(torch.nn.Module):
    """Sums that torch computes by halves of the length."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = associative_scan(torch.add, x, 0, combine_mode="generic")
        return total


class Scan(torch.nn.Module):
    """The same sums, step by step."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(total: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return total + row, (total + row).clone()

        sums: torch.Tensor = scan(step, torch.zeros(4), x)[1]
        return sums


@pytest.mark.parametrize("length", [3, 12, 24])
def test_the_length_of_an_associative_scan_is_fixed(length: int) -> None:
    shapes = ({0: Dim("n", min=2, max=100)},)
    with pytest.raises(DynamicShapesError, match="associative_scan for the length") as caught:
        convert(AssociativeScan(), (torch.randn(length, 4),), dynamic_shapes=shapes)
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert "associative_scan(torch.add, x" in lines[2]
    assert "an example of at least" not in str(caught.value)


def test_the_advice_for_an_associative_scan_works() -> None:
    x = torch.randn(5, 4)
    program = convert(Scan(), (x,), dynamic_shapes=({0: Dim("n", min=2, max=100)},))
    for length in (2, 5, 31):
        compare(program, Scan(), (torch.randn(length, 4),)).assert_close()
