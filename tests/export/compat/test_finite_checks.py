"""Branches on whether values are finite: exported as they compute, or as for finite values."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

from coreai_onnx import compare, convert
from coreai_onnx.errors import ExportError, ExportRetryWarning
from coreai_onnx.export.compat.finite_checks import AssumesFinite, NotARepairError, Repairs

nn = torch.nn
FINITE = torch.tensor([[1.0, -2.0], [3.0, 500.0]])
OVERFLOW = torch.tensor([[1.0, torch.inf], [-torch.inf, 500.0]])


class Clamps(nn.Module):
    """As the layers of Bart."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * 2
        if h.dtype == torch.float32 and not torch.isfinite(h).all():
            limit = torch.finfo(torch.float16).max - 1000
            h = torch.clamp(h, min=-limit, max=limit)
        return h + 1


class ClampsTwice(nn.Module):
    """As the layers of LongT5."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        overflow = torch.isinf(x).any() | torch.isnan(x).any()
        if overflow:
            x = x.clamp(-100, 100)
        x = x + 1
        if (~x.isinf()).logical_not().any().item():
            x = torch.clamp(x, max=5)
        return x


class ReplacesNan(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - x
        if torch.isnan(x).any():
            x = x.nan_to_num(7.0)
        return x


@pytest.mark.parametrize("model", [Clamps, ClampsTwice, ReplacesNan])
def test_a_repair_of_values_is_exported_as_it_computes(model: type[nn.Module]) -> None:
    module = model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the results are the same: nothing to warn of
        program = convert(module, FINITE, dynamic_shapes=({0: "rows"},))
    for x in (FINITE, OVERFLOW, torch.tensor([[torch.nan, 90000.0]])):
        compare(program, module, (x,)).assert_close()


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.isnan(x).any():
            raise ValueError("nan")
        return x * 2


class Substitutes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.isfinite(x).all():
            return torch.zeros_like(x)
        return x * 2


@pytest.mark.parametrize("model", [Raises, Substitutes])
def test_other_branches_are_taken_as_for_finite_values(model: type[nn.Module]) -> None:
    with pytest.warns(ExportRetryWarning, match="taken as for finite values"):
        program = convert(model(), FINITE)
    compare(program, model(), (FINITE,)).assert_close()


class ClampsFinite(nn.Module):
    """The branch is for finite values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.isfinite(x).all():
            x = torch.clamp(x, 0, 1)
        return x


class ClampsAlways(nn.Module):
    """The branch is also for finite values."""

    def forward(self, x: torch.Tensor, *, always: bool = True) -> torch.Tensor:
        if torch.isinf(x).any() or always:
            x = torch.clamp(x, 0, 1)
        return x


class ClampsAndMore(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 1.0
        if torch.isinf(x).any():
            scale = 2.0
            x = torch.clamp(x, 0, 1)
        return x * scale


class ClampsAnother(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if torch.isinf(x).any():
            y = torch.clamp(y, 0, 1)
        return y


class ClampsTheRest(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.isinf(x).any():
            x = torch.clamp(x, 0, 1)
        else:
            x = x + 1
            x = x * 2
        return x


class ClampsIfAsked(nn.Module):
    """The values alone do not decide."""

    def forward(self, x: torch.Tensor, *, limits: bool = False) -> torch.Tensor:
        if torch.isinf(x).any() and limits:
            x = torch.clamp(x, 0, 1)
        return torch.clamp(x, -1, 2)


@pytest.mark.parametrize(
    "model",
    [
        ClampsFinite,
        ClampsAlways,
        ClampsAndMore,
        ClampsAnother,
        ClampsTheRest,
        ClampsIfAsked,
        Raises,
    ],
)
def test_what_does_more_is_no_repair(model: type[nn.Module]) -> None:
    with Repairs(), pytest.raises(NotARepairError):
        model()(FINITE)
    expected = model()(FINITE)
    with AssumesFinite():
        assert torch.equal(model()(FINITE), expected)


def test_without_its_source_a_branch_is_taken_as_for_finite_values() -> None:
    found: dict[str, type[nn.Module]] = {}
    code = inspect.getsource(Clamps)
    exec(code, {"nn": nn, "torch": torch}, found)
    module = found["Clamps"]()
    with pytest.warns(ExportRetryWarning, match="taken as for finite values"):
        program = convert(module, FINITE)
    compare(program, module, (FINITE,)).assert_close()


def test_a_branch_on_other_values_is_still_rejected() -> None:
    class Positive(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if (x > 0).all() else x

    with pytest.raises(ExportError, match="forward depends in Python on values of tensors"):
        convert(Positive(), FINITE)
