"""Every kernel gives what its reference gives, for every case the bodies are tried on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.composite_calls import CASES, Case
from tests.custom_ops.single_op import DTYPES
from tests.lower.checking import run_model
from tests.tolerances import assert_close

KERNELS = (
    "gated_delta_update",
    "gather_mm",
    "geglu",
    "group_norm",
    "kv_cache_update",
    "layer_norm",
    "rms_norm",
    "rope",
    "scaled_dot_product_attention",
    "skip_layer_norm",
    "skip_rms_norm",
    "swiglu",
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [c for c in CASES if c.composite in KERNELS], ids=str)
def test_kernel_gives_what_the_reference_gives(
    kernels: Path, case: Case, dtype: torch.dtype
) -> None:
    inputs = case.inputs(dtype)
    outputs = run_model(case.model(dtype, dynamic=True), inputs, library=kernels)
    for actual, expected in zip(outputs, case.expected_outputs(inputs), strict=True):
        assert_close(actual, expected)


def test_every_kernel_has_cases() -> None:
    assert {c.composite for c in CASES} >= set(KERNELS)
