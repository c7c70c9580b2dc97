"""The torch ops: their references, and shapes for torch.export that say the same."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.composites import torch_ops
from coreai_onnx.composites.few_bits import gather_mm_nbits
from coreai_onnx.composites.gated_delta import gated_delta_update
from coreai_onnx.composites.products import gather_mm
from tests.composites.expert_cases import EXPERT_CASES
from tests.support.composite_calls import delta_cases, expert_cases
from tests.support.tolerances import assert_close

CHECKS = ("test_schema", "test_faketensor")


@pytest.mark.parametrize("case", list(expert_cases()), ids=str)
def test_gather_mm_computes_its_reference(case) -> None:
    inputs = [*case.inputs(torch.float32), None, None][:4]
    axis = case.attributes.get("num_batch_axes", 0)
    turned = case.attributes.get("transpose_rhs", 0)
    arguments = (*inputs, axis, bool(turned))
    expected = gather_mm(*inputs, num_batch_axes=axis, transpose_rhs=turned)
    assert_close(torch_ops.gather_mm(*arguments), expected)
    torch.library.opcheck(torch_ops.gather_mm, arguments, test_utils=CHECKS)


@pytest.mark.parametrize("case", EXPERT_CASES[::5], ids=str)
def test_gather_mm_nbits_computes_its_reference(case) -> None:
    inputs = [*case.inputs(torch.float32), None, None][:6]
    expected = gather_mm_nbits(*inputs, **case.attributes)
    arguments = (*inputs, *({"bits": 4, "group_size": 32} | case.attributes).values())
    assert_close(torch_ops.gather_mm_nbits(*arguments), expected)
    torch.library.opcheck(torch_ops.gather_mm_nbits, arguments, test_utils=CHECKS)


@pytest.mark.parametrize("case", list(delta_cases())[:3], ids=str)
def test_gated_delta_update_computes_its_reference(case) -> None:
    inputs = case.inputs(torch.float16)
    assert_close(torch_ops.gated_delta_update(*inputs), gated_delta_update(*inputs))
    torch.library.opcheck(torch_ops.gated_delta_update, tuple(inputs), test_utils=CHECKS)
