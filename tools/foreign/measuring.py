"""One model in one dtype: converted, run at two sizes on bodies and kernels, held to torch.

A result passes within the tolerances of its dtype, or if it is as near to the model computed in
the next wider dtype as torch's own result is: a deep model loses more digits than one operator.
A model that rounds its activations to integers passes if it differs from torch by no more than
torch does from itself after a change in the last place (:mod:`tools.foreign.sensitivity`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from coreai_onnx import OnnxProgram, convert, session
from coreai_onnx.errors import CoreaiError, ExportError
from coreai_onnx.runtime import Session, kernels_built
from tests.models.architecture import expected_outputs
from tests.support.tolerances import as_numpy, assert_close
from tools.foreign.case import FIRST, SECOND, Case, Inputs, Size, in_dtype
from tools.foreign.sensitivity import sensitivity
from tools.operators.measuring import (
    CONVERSION_FAILED,
    MISMATCH,
    NOT_EXPORTED,
    PASS,
    REFUSED,
    REJECTED,
    RUN_FAILED,
    limited,
    line,
    reason,
)

SECONDS = 120
"""At most for one step, of the processor's time."""
WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
TIMES = 8
"""How many times torch's own rounding error is still rounding: three bits, for sums that another
library adds up in another order."""
Progress = Callable[[str], None]
Run = Callable[[list[torch.Tensor], bool], list[Any]]
"""Flat inputs, and whether to use kernels, to flat outputs."""


@dataclass
class Outcome:
    """What became of a model with one exporter.

    Attributes:
        status: ``pass``, or the worst of what was found.
        detail: The first line of what went wrong.
        resized: What became of the second size, under ``"second size"``.
        seconds: Processor time.
    """

    status: str
    detail: str = ""
    resized: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Subject:
    """A case in one dtype with what torch makes of it, built once for all exporters.

    Raises:
        Exception: Whatever the model raises in torch itself.
    """

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.case, self.dtype = case, dtype
        with limited(SECONDS):
            self.module = case.module(dtype)
            self.arguments = {size: case.arguments(size, dtype) for size in (FIRST, SECOND)}
            self.expected = {s: self._expected(a) for s, a in self.arguments.items()}
        self._exported: ExportedProgram | None = None

    def flat(self, size: Size) -> list[torch.Tensor]:
        """Return the tensors among the arguments, in order."""
        return [x for x in pytree.tree_leaves(self.arguments[size]) if torch.is_tensor(x)]

    def exported(self) -> ExportedProgram:
        """Return what torch.export makes of the module, from the first call on."""
        if self._exported is None:
            with limited(SECONDS), torch.no_grad():
                self._exported = torch.export.export(
                    self.module,
                    (),
                    self.arguments[FIRST],
                    dynamic_shapes=self.case.dynamic_shapes(),
                )
        return self._exported

    def takes(self, size: Size) -> bool:
        """Whether the exported program takes this size and computes what the model does."""
        return self.exported_difference(size) == ""

    def exported_difference(self, size: Size) -> str | None:
        """Say how the results of torch.export's own program differ; None if it does not run."""
        try:
            with limited(SECONDS), torch.no_grad():
                given = self.exported().module()(**self.arguments[size])
            leaves = [x for x in pytree.tree_leaves(given) if torch.is_tensor(x)]
            return self.difference(leaves, size)
        except Exception:  # noqa: BLE001 - guards raise anything
            return None

    def difference(self, actual: list[Any], size: Size) -> str:
        """Say how results differ from torch's beyond rounding; empty if they do not."""
        try:
            assert_close(actual, self.expected[size])
        except AssertionError as error:
            near = self._as_near(actual, size) or self._within_steps(actual, size)
            return "" if near else str(error)
        return ""

    def _expected(self, arguments: Inputs) -> list[torch.Tensor]:
        first, second = (expected_outputs(self.module, arguments) for _ in range(2))
        for a, b in zip(first, second, strict=True):
            if not torch.equal(a.nan_to_num(), b.nan_to_num()):
                raise ValueError("random")
            if a.is_floating_point() and a.numel() and not a.isfinite().any():
                raise ValueError("no finite value")
        return first

    def _as_near(self, actual: list[Any], size: Size) -> bool:
        """Whether results are as near to those of the wider dtype as torch's own are."""
        expected = self.expected[size]
        if len(actual) != len(expected):
            return False
        wide = WIDER[self.dtype]
        try:
            with limited(SECONDS):
                module = self._widened(wide)
                exact = expected_outputs(module, in_dtype(self.arguments[size], wide))
        except Exception:  # noqa: BLE001 - a model may be written for one dtype
            return False
        return all(map(_near, actual, expected, exact))

    def _widened(self, wide: torch.dtype) -> torch.nn.Module:
        """Return the module in a wider dtype; quantized weights without a conversion as values."""
        module = copy.deepcopy(self.module).to(wide)
        for layer in module.modules():
            for name, weight in layer.named_parameters(recurse=False):
                keeps_dtype = weight.is_floating_point() and weight.dtype != wide
                if keeps_dtype and not self.case.quantizes:
                    values = weight.dequantize().to(wide)
                    setattr(layer, name, torch.nn.Parameter(values, requires_grad=False))
        return module

    def _within_steps(self, actual: list[Any], size: Size) -> bool:
        """Whether results differ less than those of torch after a change in the last place."""
        expected = self.expected[size]
        if not self.case.quantizes or len(actual) != len(expected):
            return False
        with limited(SECONDS):
            allowed = sensitivity(self.module, self.arguments[size], expected)
        return all(map(_within, actual, expected, allowed))


def _within(actual: Any, expected: torch.Tensor, allowed: float) -> bool:
    a, e = as_numpy(actual), as_numpy(expected)
    if (a.shape, a.dtype) != (e.shape, e.dtype):
        return False
    return bool((abs(a.astype("float64") - e.astype("float64")) <= allowed).all())


def _near(actual: Any, expected: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a result is not much further from the exact one than torch's; NaN stays NaN."""
    a, e = as_numpy(actual), as_numpy(expected)
    if (a.shape, a.dtype) != (e.shape, e.dtype):
        return False
    if not expected.is_floating_point():
        return bool((a == e).all())
    finite = expected.isfinite()
    ours, own, x = torch.from_numpy(a.astype("float64")), expected.double(), exact.double()
    same = (ours == own) | (ours.isnan() & own.isnan())
    if not same[~finite].all():
        return False
    if not finite.any():
        return True
    ours, own, x = ours[finite], own[finite], x[finite]
    if not x.isfinite().all():
        return False
    step = torch.finfo(expected.dtype).eps * x.abs().max()
    allowed = TIMES * torch.maximum((own - x).abs().max(), step)
    return bool(((ours - x).abs() <= allowed).all())


def measure_ours(subject: Subject, progress: Progress) -> Outcome:
    """Return what becomes of a model that is converted."""
    progress(CONVERSION_FAILED)
    try:
        with limited(SECONDS), torch.no_grad():
            program = convert(
                subject.module,
                (),
                subject.arguments[FIRST],
                dynamic_shapes=subject.case.dynamic_shapes(),
            )
    except CoreaiError as error:
        return _refused(subject, error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return Outcome(CONVERSION_FAILED, line(error))
    progress(RUN_FAILED)
    return run_at_both(subject, opened_runner(program), sorted({False, kernels_built()}))


def _refused(subject: Subject, error: CoreaiError) -> Outcome:
    """Return whether torch.export, too, takes the model not."""
    if isinstance(error, ExportError):
        try:
            subject.exported()
        except Exception as own:  # noqa: BLE001 - torch.export raises anything
            return Outcome(NOT_EXPORTED, line(own))
    return refusal(error)


def refusal(error: CoreaiError) -> Outcome:
    """Return whether a model is refused, or an error of this package says that it is a defect."""
    own_fault = "this is a defect" in str(error)
    return Outcome(CONVERSION_FAILED if own_fault else REFUSED, reason(error))


def opened_runner(program: OnnxProgram) -> Run:
    """Return what runs a program; a session is opened for each kind of run once."""

    @functools.cache
    def opened(kernels: bool) -> Session:
        return session(program, kernels=kernels, threads=1)

    return lambda flat, kernels: list(opened(kernels).run(*flat))


def run_at_both(subject: Subject, run: Run, kernels: list[bool]) -> Outcome:
    """Run a program at both sizes; the second counts only if torch.export's program takes it."""
    outcome = Outcome(PASS)
    for size, label in ((FIRST, ""), (SECOND, "second size")):
        for with_kernels in kernels:
            found = _run(subject, run, size, with_kernels)
            if found.status != PASS and size is SECOND and not subject.takes(SECOND):
                outcome.resized[label] = REJECTED
                return outcome
            if found.status == MISMATCH and (own := subject.exported_difference(size)):
                return Outcome(NOT_EXPORTED, f"torch.export's own program differs: {own}"[:300])
            if found.status != PASS:
                where = ", ".join(filter(None, (label, "kernels" if with_kernels else "")))
                found.detail = f"{where}: {found.detail}" if where else found.detail
                return found
    outcome.resized["second size"] = PASS
    return outcome


def _run(subject: Subject, run: Run, size: Size, kernels: bool) -> Outcome:
    try:
        with limited(SECONDS):
            actual = run(subject.flat(size), kernels)
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions share no base
        return Outcome(RUN_FAILED, reason(error))
    difference = subject.difference(actual, size)
    if difference:
        return Outcome(MISMATCH, " ".join(difference.split())[:300])
    return Outcome(PASS)
