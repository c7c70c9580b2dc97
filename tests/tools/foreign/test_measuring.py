"""What the lane calls a pass, wrong, refused and fixed in size, on modules of a few lines."""

from __future__ import annotations

import pytest
import torch

from tools.foreign.case import FIRST, SECOND, Case, Inputs, Size
from tools.foreign.measuring import Outcome, Subject, measure_ours, run_at_both
from tools.foreign.torch_onnx import measure_torch_onnx
from tools.operators.measuring import (
    MISMATCH,
    NOT_EXPORTED,
    PASS,
    REFUSED,
    REJECTED,
    RUN_FAILED,
)

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


def test_a_nan_of_torch_has_to_be_a_nan() -> None:
    class Holes(torch.nn.Module):
        def forward(self, x):
            for _ in range(50):
                x = x * 1.01
            return torch.where(x > 0, x, torch.nan)

    subject = _subject(Holes(), torch.float16)

    def run(hole, factor=1.01):
        def results(flat, kernels):
            y = (flat[0].double() * factor**50).half()
            return [torch.where(flat[0] > 0, y, hole)]

        return _run(subject, results).status

    assert run(torch.nan) == PASS
    assert run(0.0) == MISMATCH
    assert run(torch.nan, factor=1.012) == MISMATCH


def test_a_model_that_overflows_in_torch_has_nothing_to_be_compared_with() -> None:
    class Overflows(torch.nn.Module):
        def forward(self, x):
            return x.abs().clamp(min=1) * 60000 * 60000

    with pytest.raises(ValueError, match="no finite value"):
        _subject(Overflows(), torch.float16)


class Quantizes(torch.nn.Module):
    """Rounds its activations to integers."""

    def forward(self, x):
        return x.round() * 0.01


def _with_halves(size: Size) -> Inputs:
    return {
        "x": torch.cat([torch.randn(size.batch, size.length), torch.full((size.batch, 1), 2.5)], 1)
    }


def test_a_model_that_quantizes_may_differ_as_torch_does_after_a_change_in_the_last_place() -> None:
    rounded, plain = (
        Subject(Case("case", "none", Quantizes, _with_halves, quantizes=quantizes), torch.float32)
        for quantizes in (True, False)
    )

    def run(subject, step):
        def results(flat, kernels):
            return [torch.where(flat[0] == 2.5, 2 + step, flat[0].round()) * 0.01]

        return _run(subject, results).status

    assert run(rounded, 0) == run(plain, 0) == PASS
    assert (run(rounded, 1), run(plain, 1)) == (PASS, MISMATCH)
    assert run(rounded, 2) == MISMATCH


class FixedDtype(torch.Tensor):
    """A weight that ``Module.to`` leaves in its dtype, as torchao's Float8Tensor."""

    def to(self, *args, **kwargs):
        return self

    def __deepcopy__(self, memo):
        return torch.nn.Parameter(self.detach().clone(), requires_grad=False)

    def dequantize(self):
        return self.as_subclass(torch.Tensor)


def test_a_weight_that_keeps_its_dtype_is_widened_by_its_values() -> None:
    class Products(torch.nn.Module):
        def __init__(self):
            super().__init__()
            weight = (torch.eye(12) * 1.01).half().as_subclass(FixedDtype)
            self.weight = torch.nn.Parameter(weight, requires_grad=False)

        def forward(self, x):
            x = x[:, :12]
            for _ in range(50):
                x = torch.nn.functional.linear(x, self.weight)
            return x.as_subclass(torch.Tensor)

    subject = _subject(Products(), torch.float16)
    factor = float(torch.tensor(1.01).half())

    def run(factor):
        return _run(subject, lambda flat, _: [(flat[0][:, :12].double() * factor**50).half()])

    assert run(factor).status == PASS
    assert run(1.012).status == MISMATCH
