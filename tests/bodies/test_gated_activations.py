"""Bodies of gated activations: the same at the edges of the dtypes, one for several dtypes."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from tests.lower.checking import run_model
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

CASES = [
    Case("swiglu", ((9,), (9,))),
    Case("geglu", ((9,), (9,)), {"approximate": "none"}),
    Case("geglu", ((9,), (9,)), {"approximate": "tanh"}),
    *(Case("add_bias", ((9,), (9,)), {"activation": a}) for a in ("none", "silu", "gelu_tanh")),
]
GATES = torch.tensor([float("-inf"), -6e4, -20.0, -1.0, 0.0, 1e-3, 1.0, 20.0, 6e4])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c}{c.attributes}")
def test_large_and_small_gates(case: Case, dtype: torch.dtype) -> None:
    inputs = [GATES.to(dtype), torch.ones(9, dtype=dtype)]
    actual = run_model(case.model(dtype, dynamic=True), inputs)
    assert_close(actual, case.expected_outputs(inputs))


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c}{c.attributes}")
def test_dtypes_up_to_float32_share_a_body(case: Case) -> None:
    texts = {
        ir.to_proto(next(iter(case.model(d, dynamic=True).functions.values()))).SerializeToString()
        for d in (torch.float32, torch.float16, torch.bfloat16)
    }
    assert len(texts) == 1
