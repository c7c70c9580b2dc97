"""torch = body = kernel, for every composite, dtype, combination of inputs, and kind of dims."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.declaration import Composite
from tests.composites.matrix import (
    ALL_CASES,
    DTYPES,
    KERNELS,
    OPSET,
    combinations,
    optional_inputs,
)
from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

FEW_BITS = ("linear_nbits", "gather_mm_nbits", "embedding_nbits")
EXCLUSIVE = {
    name: (
        {"zero_points", "palette"},
        {"zero_points", "minimums"},
        {"zero_points", "scale_codes"},
        {"palette", "minimums"},
        {"table", "scale_codes"},
    )
    for name in FEW_BITS
}
TOGETHER = {"table": {"layout", "palette"}, "layout": {"table", "palette"}}
"""Optional inputs by those that need them."""
EXCLUSIVE["blockwise_shift_scale"] = ({"zero_point", "minval"},)
"""Optional inputs of which a call passes at most one."""


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_body_gives_what_torch_gives(case: Case) -> None:
    for way in combinations():
        inputs = case.inputs(way.dtype)
        model = case.model(way.dtype, dynamic=way.dynamic, opset=way.opset)
        assert_close(run_model(model, inputs), case.expected_outputs(inputs), message=str(way))


@pytest.mark.parametrize("case", [c for c in ALL_CASES if c.composite in KERNELS], ids=str)
def test_kernel_gives_what_torch_gives(case: Case, kernels: Path) -> None:
    for dtype in DTYPES:
        inputs = case.inputs(dtype)
        model = case.model(dtype, dynamic=True, opset=OPSET)
        model.functions.clear()  # so that nothing but the kernel can run
        actual = run_model(model, inputs, library=kernels)
        assert_close(actual, case.expected_outputs(inputs), message=str(dtype))


@pytest.mark.parametrize("composite", COMPOSITES.values(), ids=lambda c: c.name)
def test_every_combination_of_optional_inputs_is_tried(composite: Composite) -> None:
    names = [d.name for d in composite.inputs if d.optional]
    sizes = range(len(names) + 1)
    wanted = {frozenset(c) for n in sizes for c in itertools.combinations(names, n)}
    excluded = EXCLUSIVE.get(composite.name, ())
    wanted = {c for c in wanted if not any(pair <= c for pair in excluded)}
    wanted = {c for c in wanted if all(TOGETHER.get(name, set()) <= c for name in c)}
    tried = {optional_inputs(c) for c in ALL_CASES if c.composite == composite.name}
    assert tried == wanted


def test_labels_are_unique() -> None:
    labels = [str(c) for c in ALL_CASES]
    assert sorted(labels) == sorted(set(labels))
