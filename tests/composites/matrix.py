"""Every composite × case × dtype × kind of dims × opset, and a summary of what that makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from coreai_onnx.composites import COMPOSITES
from tests.composites.aten_cases import ATEN_CASES
from tests.composites.expert_cases import EXPERT_CASES
from tests.composites.optional_cases import OPTIONAL_CASES
from tests.support.composite_calls import CASES, Case

ALL_CASES: Sequence[Case] = (*CASES, *OPTIONAL_CASES, *EXPERT_CASES, *ATEN_CASES)
"""Every call that is tried."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
OPSET = 23
OTHER_OPSETS = (18, 21, 26)

KERNELS = frozenset(name for name, composite in COMPOSITES.items() if composite.kernel)
"""Composites that the library has kernels of."""


@dataclasses.dataclass(frozen=True)
class Combination:
    """One way to run a case.

    Attributes:
        dtype: Dtype of the composite.
        dynamic: Whether dims are symbolic.
        opset: ``ai.onnx`` opset of the body.
    """

    dtype: torch.dtype
    dynamic: bool
    opset: int

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{name}, {'dynamic' if self.dynamic else 'static'}, opset {self.opset}"


def combinations() -> Iterator[Combination]:
    """Return every dtype with both kinds of dims, and the other opsets in float32."""
    for dtype in DTYPES:
        yield Combination(dtype, dynamic=True, opset=OPSET)
        yield Combination(dtype, dynamic=False, opset=OPSET)
    for opset in OTHER_OPSETS:
        yield Combination(torch.float32, dynamic=True, opset=opset)


def optional_inputs(case: Case) -> frozenset[str]:
    """Return which optional inputs a case passes."""
    declared = COMPOSITES[case.composite].inputs
    pairs = zip(declared, case.shapes, strict=False)
    return frozenset(d.name for d, shape in pairs if d.optional and shape is not None)


@dataclasses.dataclass(frozen=True)
class Row:
    """What is tried of one composite.

    Attributes:
        name: The composite.
        cases: Calls: inputs present, shapes, attributes.
        optional: Combinations of optional inputs among them.
        bodies: Runs of the function body against torch.
        kernels: Runs of the kernel against torch.
    """

    name: str
    cases: int
    optional: int
    bodies: int
    kernels: int


def summary() -> list[Row]:
    """Return one row per composite."""
    runs = len(list(combinations()))
    rows = []
    for name in COMPOSITES:
        cases = [c for c in ALL_CASES if c.composite == name]
        optional = len({optional_inputs(c) for c in cases})
        kernels = len(cases) * len(DTYPES) if name in KERNELS else 0
        rows.append(Row(name, len(cases), optional, len(cases) * runs, kernels))
    return rows
