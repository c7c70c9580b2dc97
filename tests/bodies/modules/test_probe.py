"""The numeric check: what it finds, at which sizes and magnitudes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from coreai_onnx.bodies.modules.probe import probe_difference
from coreai_onnx.composites import COMPOSITES
from coreai_onnx.export.externalize.module_call import ModuleCall
from coreai_onnx.export.externalize.modules import ExternalizeSpec

Tensor = torch.Tensor


class Function(torch.nn.Module):
    """A function of a tensor, with a weight of ones."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.weight)


def norm_difference(function: Callable[..., Any], eps: float = 1e-5) -> str:
    module = Function(function)
    _, tree = pytree.tree_flatten({"x": 0})
    call = ModuleCall(module, "norm", ExternalizeSpec(Function), module.forward, tree, ("tensor",))
    sources = {"input": ("argument", "x"), "scale": ("weight", "weight")}
    examples = ([torch.empty(2, 8)], [])
    return probe_difference(COMPOSITES["rms_norm"], call, sources, {"eps": eps}, examples)


def rms(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return F.rms_norm(x, (8,), weight, eps)


def test_the_same_meaning_has_no_difference() -> None:
    assert norm_difference(rms) == ""


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, w: rms(x, w, 1e-6), "its result differs"),
        (lambda x, w: rms(x, 2 - w), "its result differs"),
        (lambda x, w: rms(x, w).clamp(-1.5, 1.5), "its result differs"),
        (
            lambda x, w: rms(x, w).double(),
            r"it gives torch.float64 \(2, 8\), the composite torch.float32",
        ),
        (lambda x, w: rms(x, w)[0], r"it gives torch.float32 \(8,\)"),
        (lambda x, w: rms(x, w) * float("nan"), "its result differs"),
        (lambda x, w: x.nonexistent() if x.abs().max() < 0.1 else rms(x, w), None),
        (lambda x, w: x @ x if x.abs().max() < 0.1 else rms(x, w), "it fails on other inputs"),
    ],
)
def test_what_differs_is_said(function: Callable[..., Any], reason: str | None) -> None:
    if reason is None:
        with pytest.raises(AttributeError):  # a defect of the module, not a difference
            norm_difference(function)
    else:
        assert re.match(reason, found := norm_difference(function)), found
