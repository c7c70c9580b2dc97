"""The gated delta rule by onnxruntime's own op: the same numbers, and calls that stay."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch

from coreai_onnx.passes.cleanup.remove_unused import remove_dead_code
from coreai_onnx.passes.contrib.linear_attention import contrib_linear_attention
from tests.passes.rewriting import run, run_passes
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close


def case(
    heads: int, groups: int, length: int, *, state: bool = True, norm: int = 1, label: str = ""
) -> Case:
    values = heads * groups
    key, gate = (2, heads, length, 8), (2, values, length)
    last = (2, values, 8, 6) if state else None
    shapes = (key, key, (2, values, length, 6), gate, gate, last)
    return Case("gated_delta_update", shapes, {"use_qk_l2_norm": norm}, label=label)


@pytest.mark.parametrize("norm", [0, 1])
@pytest.mark.parametrize("state", [True, False])
@pytest.mark.parametrize(("heads", "groups"), [(3, 1), (2, 2), (1, 3)])
def test_the_rule_is_onnxruntimes(heads: int, groups: int, state: bool, norm: int) -> None:
    some = case(heads, groups, 5, state=state, norm=norm)
    model = some.model(torch.float32, dynamic=False)
    inputs = [x for x in some.inputs(torch.float32) if x is not None]
    assert run_passes(model, [contrib_linear_attention, remove_dead_code]).total >= 1
    made = [n for n in model.graph if n.domain]
    assert [(n.domain, n.op_type) for n in made] == [("com.microsoft", "LinearAttention")]
    assert ("Expand" in {n.op_type for n in model.graph}) == (groups > 1)
    names = [v.name for v in model.graph.inputs]
    feeds = {str(n): x.numpy() for n, x in zip(names, inputs, strict=True)}
    assert_close(run(model, feeds), some.expected_outputs(some.inputs(torch.float32)))
    assert run_passes(model, [contrib_linear_attention]).total == 0


def test_length_and_batch_may_be_dynamic() -> None:
    model = case(2, 2, 5).model(torch.float32, dynamic=False)
    for value in model.graph.inputs:
        dims = list(value.shape)
        length = [] if value.name == "initial_state" else [2]
        value.shape = ir.Shape(
            ["b" if i == 0 else "s" if i in length else d for i, d in enumerate(dims)]
        )
    assert run_passes(model, [contrib_linear_attention]).total == 1
    other = case(2, 2, 9)
    inputs = other.inputs(torch.float32)
    feeds = {
        str(v.name): x.numpy()
        for v, x in zip(model.graph.inputs, inputs, strict=True)
        if x is not None
    }
    assert_close(run(model, feeds), other.expected_outputs(inputs))


@pytest.mark.parametrize(
    ("dtype", "dynamic", "reason"),
    [
        (torch.float16, False, "the dtype is not float32"),
        (torch.float32, True, "heads and their sizes are not known"),
    ],
)
def test_others_stay(dtype: torch.dtype, dynamic: bool, reason: str) -> None:
    model = case(2, 1, 5).model(dtype, dynamic=dynamic)
    report = run_passes(model, [contrib_linear_attention])
    assert report.total == 0
    assert [m.miss.reason for m in report.near_misses] == [reason]
