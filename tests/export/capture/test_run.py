"""The export of a module as one step: what is kept whole, what an error says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coreai_onnx.errors import ExportError, ExternalizationError, StagingError
from coreai_onnx.export.capture.run import capture, check_calls
from coreai_onnx.export.externalize.module_call import OP
from tests.support.externalized import untouched


class Norm(torch.nn.Module):
    """An RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.eps, self.weight = 1e-5, torch.nn.Parameter(torch.rand(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Branches(torch.nn.Module):
    """Does not export."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def export(model: torch.nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(model, (torch.ones(2, 4),))


def ops(program: torch.export.ExportedProgram) -> list[str]:
    return [str(n.target) for n in program.graph.nodes if "coreai" in str(n.target)]


@pytest.mark.parametrize(
    ("given", "expected", "reported"),
    [
        (None, [], None),
        ([], [], None),
        ([Norm], [str(OP)] * 2, None),
        ("auto", ["coreai.composite.default"] * 2, 2),
        (["auto"], ["coreai.composite.default"] * 2, 2),
        (["auto", Norm], [str(OP)] * 2, 0),
    ],
)
def test_what_stays_whole(given: Any, expected: list[str], reported: int | None) -> None:
    model = torch.nn.Sequential(Norm(), Norm())
    before = {name: dict(m.__dict__) for name, m in model.named_modules()}
    captured = capture(model, export, given)
    untouched(model, before)
    assert ops(captured.program) == expected
    assert len(captured.calls) == expected.count(str(OP))
    found = captured.recognized
    assert (None if found is None else len(found.recognized)) == reported


@pytest.mark.parametrize("given", [None, [Norm], "auto"])
def test_a_model_that_does_not_export(given: Any) -> None:
    model = torch.nn.Sequential(Norm(), Branches())
    before = {name: dict(m.__dict__) for name, m in model.named_modules()}
    with pytest.raises(ExportError, match="Your model failed to export"):
        capture(model, export, given)
    untouched(model, before)


def test_errors_of_this_package_pass() -> None:
    def refuse(_: torch.nn.Module) -> Any:
        raise ExternalizationError("no")

    with pytest.raises(ExternalizationError, match=r"^no$"):
        capture(Norm(), refuse)


def test_calls_must_be_known() -> None:
    captured = capture(torch.nn.Sequential(Norm(), Norm()), export, [Norm])
    check_calls(captured.program, captured.calls)
    first, *_ = captured.calls
    with pytest.raises(StagingError, match=r"modules \(1\) that are not given"):
        check_calls(captured.program, {first: captured.calls[first]})
    root = capture(Norm(), export, [Norm])
    with pytest.raises(StagingError, match=r"modules \(\(root\)\) that are not given"):
        check_calls(root.program, {})
