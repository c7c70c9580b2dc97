"""The search for wrong regions."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.debugging.blaming.search import RegionSearch
from coreai_onnx.errors import ComparisonError
from tests.debugging.small_reference import converted
from tests.support.small_models import linear_model


def test_findings_of_later_calls_are_new_ones_only() -> None:
    program = converted()
    next(n for n in program.model.graph if n.op_type == "Tanh").op_type = "Sin"
    search = RegionSearch(program.model, program.record(), [{"kernels": False}])
    for _ in range(3):
        search.call((torch.randn(3, 8),), {})
    (finding,) = search.findings
    assert finding.values == ("tanh",)
    assert finding.lines == (finding.nodes[0].where.source,)
    assert len(search.runs) == 3
    assert search.unchecked() == ()


def test_a_record_of_another_model() -> None:
    model = linear_model()
    model.graph.inputs[0].name = "unheard"
    with pytest.raises(ComparisonError, match="has no value for the input 'unheard'"):
        RegionSearch(model, converted().record(), [{"kernels": False}])
