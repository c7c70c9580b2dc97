"""What the lane calls a pass, wrong, refused and fixed in size, on modules of a few lines."""

from __future__ import annotations

import pytest
import torch

from tests.coverage.measuring import (
    MISMATCH,
    NOT_EXPORTED,
    PASS,
    REFUSED,
    REJECTED,
    RUN_FAILED,
)
from tests.foreign.case import FIRST, SECOND, Case, Inputs, Size
from tests.foreign.measuring import Outcome, Subject, measure_ours, run_at_both
from tests.foreign.torch_onnx import measure_torch_onnx

pytestmark = pytest.mark.filterwarnings("ignore")  # as the worker does


def _rows(size: Size) -> Inputs:
    return {"x": torch.randn(size.batch, size.length)}


def _subject(module: torch.nn.Module, dtype: torch.dtype = torch.float32) -> Subject:
    return Subject(Case("case", "none", lambda: module, _rows), dtype)


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


class OneLength(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[1] == FIRST.length else x * 3


class Tail(torch.nn.Module):
    """Needs an op that the converter refuses."""

    def forward(self, x):
        return torch.linalg.eig(x @ x.T).eigenvectors.abs()


@pytest.mark.parametrize("measure", [measure_ours, measure_torch_onnx])
def test_a_model_that_agrees_at_both_sizes_passes(measure) -> None:
    outcome = measure(_subject(Double()), str)
    assert (outcome.status, outcome.resized) == (PASS, {"second size": PASS})


def test_a_size_that_torch_fixes_is_no_failure() -> None:
    outcome = measure_ours(_subject(OneLength()), str)
    assert (outcome.status, outcome.resized) == (PASS, {"second size": REJECTED})


class OtherInExport(torch.nn.Module):
    """Computes something else while it is exported, as some models do."""

    def forward(self, x):
        return x * 3 if torch.compiler.is_exporting() else x * 2


def test_a_program_that_torch_itself_exports_wrong_is_no_failure_of_ours() -> None:
    outcome = measure_ours(_subject(OtherInExport()), str)
    assert outcome.status == NOT_EXPORTED
    assert "torch.export's own program differs" in outcome.detail


def test_an_op_without_a_lowering_is_refused_by_its_name() -> None:
    outcome = measure_ours(_subject(Tail()), str)
    assert outcome.status == REFUSED
    assert "linalg_eig" in outcome.detail


def _run(subject: Subject, run) -> Outcome:
    return run_at_both(subject, run, [False])


def test_wrong_values_shapes_and_dtypes_are_wrong() -> None:
    subject = _subject(Double())
    assert _run(subject, lambda flat, _: [flat[0] * 2]).status == PASS
    assert _run(subject, lambda flat, _: [flat[0] * 2.001]).status == MISMATCH
    assert _run(subject, lambda flat, _: [(flat[0] * 2)[None]]).status == MISMATCH
    assert _run(subject, lambda flat, _: [(flat[0] * 2).double()]).status == MISMATCH
    assert _run(subject, lambda flat, _: []).status == MISMATCH


def test_a_second_size_that_only_the_file_gets_wrong_counts() -> None:
    subject = _subject(Double())

    def run(flat, kernels):
        return [flat[0] * (2 if flat[0].shape[0] == FIRST.batch else 3)]

    outcome = _run(subject, run)
    assert outcome.status == MISMATCH
    assert outcome.detail.startswith("second size")

    def fail(flat, kernels):
        raise ValueError("no")

    assert _run(subject, fail).status == RUN_FAILED


def test_results_as_near_to_the_exact_ones_as_those_of_torch_agree() -> None:
    """In float16 torch rounds after each step; what rounds once is nearer to the exact result."""

    class Steps(torch.nn.Module):
        def forward(self, x):
            for _ in range(50):
                x = x * 1.01
            return x

    subject = _subject(Steps(), torch.float16)
    assert _run(subject, lambda flat, _: [(flat[0].double() * 1.01**50).half()]).status == PASS
    assert _run(subject, lambda flat, _: [(flat[0].double() * 1.012**50).half()]).status == MISMATCH


def test_a_random_model_has_nothing_to_be_compared_with() -> None:
    class Random(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand(())

    with pytest.raises(ValueError, match="random"):
        _subject(Random())


def test_inputs_are_the_same_for_every_exporter() -> None:
    first, second = _subject(Double()), _subject(Double())
    assert torch.equal(first.flat(SECOND)[0], second.flat(SECOND)[0])
