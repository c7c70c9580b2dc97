"""One call through export, conversion and onnxruntime, compared with torch.

With dynamic dims the call is converted once and run at its own sizes, at sizes with ones and at
larger ones. Where a resized call differs, the exported program itself is asked: if its guards
reject the sizes, or it computes what torch does not, conversion is not to blame.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from coreai_onnx.errors import CoreaiError
from tests.support.tolerances import assert_close
from tools.operators.entries import Call
from tools.operators.exporter import Runner, coreai
from tools.operators.resizing import Sizes, dynamic_dims, larger, resized, smaller, symbols
from tools.operators.ties import same_but_for_ties

PASS, MISMATCH, RUN_FAILED, REFUSED = "pass", "mismatch", "run failed", "refused"
CONVERSION_FAILED, CRASH = "conversion failed", "crash"
NOT_EXPORTED, SKIPPED = "not exported", "skipped"
REJECTED = "rejected by torch"
SEVERITY = (PASS, MISMATCH, RUN_FAILED, REFUSED, CONVERSION_FAILED, CRASH)
"""What can become of a call that torch exports, from best to worst."""

SECONDS = 60
NARROW = (torch.float16, torch.bfloat16)
_OWN_FAULT = "this is a defect"
"""In the message of an error that a lowering did not mean to raise."""
Progress = Callable[[str], None]


@dataclass
class Outcome:
    """What became of one call.

    Attributes:
        status: One of ``SEVERITY``, or why there is nothing to measure.
        detail: The first line of what went wrong.
        resized: Status at other sizes (``size 1``, ``larger``); empty without dynamic dims.
    """

    status: str
    detail: str = ""
    resized: dict[str, str] = field(default_factory=dict)


def measure(call: Call, name: str, *, dynamic: bool, progress: Progress = str) -> Outcome:
    """Return what becomes of a call.

    Args:
        call: The call.
        name: Of its entry; matrices are resized in another way.
        dynamic: Whether to convert it once with dynamic dims and run it at three shapes.
        progress: Told which step is next, so that a crash can be put down to it.
    """
    progress(SKIPPED)
    outcome, expected = _expected(call)
    if outcome is not None:
        return outcome
    progress(NOT_EXPORTED)
    try:
        with limited(), torch.no_grad():
            program = _exported(call, dynamic=dynamic)
    except Exception as error:  # noqa: BLE001 - torch.export raises anything
        return Outcome(NOT_EXPORTED, line(error))
    progress(CONVERSION_FAILED)
    try:
        with limited(), torch.no_grad():
            runner = coreai(call.module(), call.copies(), exported_program=program)
    except CoreaiError as error:
        status = CONVERSION_FAILED if _OWN_FAULT in str(error) else REFUSED
        return Outcome(status, line(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return Outcome(CONVERSION_FAILED, line(error))
    progress(RUN_FAILED)
    outcome = _run(runner, call, expected)
    if outcome.status == PASS and dynamic and symbols(program):
        _run_resized(program, runner, call, name, outcome)
    return outcome


def worst(statuses: list[str]) -> str:
    """Return the worst of the statuses; those that measure nothing count only among themselves."""
    measured = [s for s in statuses if s in SEVERITY]
    if measured:
        return max(measured, key=SEVERITY.index)
    return NOT_EXPORTED if NOT_EXPORTED in statuses else SKIPPED


def _expected(call: Call) -> tuple[Outcome | None, list[Any]]:
    """Return torch's own result, or why it has none to compare with."""
    try:
        with limited():
            first, second = call.value(seed=1), call.value(seed=2)
    except Exception as error:  # noqa: BLE001 - torch raises anything
        return Outcome(SKIPPED, line(error)), []
    dense = [_dense(x) for x in first]
    if not dense:  # the empty shape that scalars broadcast to
        return Outcome(SKIPPED, "no result"), []
    if any(not _same(a, _dense(b)) for a, b in zip(dense, second, strict=True)):
        return Outcome(SKIPPED, "random"), []
    return None, dense


def _exported(call: Call, *, dynamic: bool) -> torch.export.ExportedProgram:
    shapes = dynamic_dims(call) if dynamic else None
    return torch.export.export(call.module(), call.copies(), dynamic_shapes=shapes, strict=False)


def _run(runner: Runner, call: Call, expected: list[Any]) -> Outcome:
    try:
        with limited():
            actual = runner.run(call.copies())
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions share no base
        return Outcome(RUN_FAILED, line(error))
    try:
        assert_close(actual, expected, exception="sweep")
    except AssertionError as error:
        if not (_as_near(call, actual, expected) or same_but_for_ties(call, actual, expected)):
            return Outcome(MISMATCH, line(error))
    return Outcome(PASS)


def _as_near(call: Call, actual: list[Any], expected: list[Any]) -> bool:
    """Whether results of 16-bit floats are as near to those of float32 as torch's own are."""
    if not any(t.dtype in NARROW for t in call.tensors):
        return False
    wide = call.given(tuple(t.float() if t.dtype in NARROW else t for t in call.tensors))
    missing, exact = _expected(wide)
    if missing is not None or not len(actual) == len(expected) == len(exact):
        return False
    for a, e, x in zip(actual, expected, exact, strict=True):
        if (a.shape, a.dtype, x.shape) != (e.shape, e.dtype, e.shape):
            return False
        if a.dtype not in NARROW:
            if not torch.equal(a, e):
                return False
            continue
        own = _distance(e, x)
        finite = own[own.isfinite()]
        most = float(finite.max()) if finite.numel() else 0.0
        step = 4 * torch.finfo(a.dtype).eps * x.double().abs()
        if not bool((_distance(a, x) <= step.clamp(min=most)).all()):
            return False
    return True


def _distance(x: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return how far elements are from the exact ones, once those are rounded to 16 bits."""
    rounded = exact.to(x.dtype).double()
    same = (x.double() == rounded) | (x.isnan() & rounded.isnan())
    return torch.where(same, 0.0, (x.double() - rounded).abs())


def _run_resized(
    program: torch.export.ExportedProgram, runner: Runner, call: Call, name: str, outcome: Outcome
) -> None:
    """Run at other sizes and write what became of it into the outcome."""
    for label, sizes in (
        ("size 1", list(smaller(program, call))),
        ("larger", list(larger(program, call))),
    ):
        found = _first_measured(program, runner, call, name, sizes)
        outcome.resized[label] = found.status if found is not None else REJECTED
        if found is not None and found.status != PASS:
            outcome.status, outcome.detail = found.status, f"{label}: {found.detail}"


def _first_measured(
    program: torch.export.ExportedProgram,
    runner: Runner,
    call: Call,
    name: str,
    sizes: list[Sizes],
) -> Outcome | None:
    """Return what becomes of the first resized call that torch and its program take."""
    for choice in sizes:
        for other in resized(program, call, choice, name):
            shapes = [t.shape for t in other.tensors]
            if shapes == [t.shape for t in call.tensors]:
                continue
            missing, expected = _expected(other)
            if missing is not None:
                continue
            found = _run(runner, other, expected)
            if found.status == PASS:
                return found
            if _program_agrees(program, other, expected):
                where = ", ".join(str(tuple(s)) for s in shapes)
                return Outcome(found.status, f"at {where}: {found.detail}")
    return None


def _program_agrees(program: torch.export.ExportedProgram, call: Call, expected: list[Any]) -> bool:
    """Whether the exported program takes these sizes and computes what torch does."""
    try:
        with limited(), torch.no_grad():
            given = program.module()(*call.copies())
        found = torch.utils._pytree.tree_leaves(given)
        values = [_dense(x) for x in found if x is not None and not isinstance(x, str)]
        assert_close(values, expected, exception="sweep")
        return _as_declared(program, found)
    except Exception:  # noqa: BLE001 - guards raise anything
        return False


def _as_declared(program: torch.export.ExportedProgram, results: list[Any]) -> bool:
    """Whether results have the ranks and dtypes that the program says they have at every size."""
    node = program.graph_module.graph.output_node()
    declared = [n.meta["val"] for n in node.all_input_nodes]
    pairs = [
        (d, r)
        for d, r in zip(declared, results, strict=False)
        if isinstance(d, torch.Tensor) and isinstance(r, torch.Tensor)
    ]
    return len(declared) != len(results) or all(
        (d.dim(), d.dtype) == (r.dim(), r.dtype) for d, r in pairs
    )


def _dense(x: Any) -> Any:
    """Return a result as the file gives it: numbers as tensors, complex ones as pairs."""
    found = x.detach() if isinstance(x, torch.Tensor) else torch.as_tensor(x)
    if found.layout != torch.strided:
        found = found.to_dense()
    if found.is_complex():
        found = torch.view_as_real(found.resolve_conj())
    return found.contiguous()


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())  # noqa: PLR0124 - nan is not itself


@contextlib.contextmanager
def limited(seconds: int = SECONDS) -> Iterator[None]:
    """Raise ``TimeoutError`` in what takes too long; only the main thread can.

    The seconds are the processor's, so that a busy machine makes no findings.
    """

    def expire(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def line(error: BaseException) -> str:
    """Return the innermost cause on one line; of our own errors, what went wrong."""
    if isinstance(error, CoreaiError):
        return " ".join(re.split(r"\s+at \(root\)|\n", str(error))[0].split())[:300]
    seen = error
    while (cause := seen.__cause__ or seen.__context__) is not None and cause is not seen:
        seen = cause
    return f"{type(seen).__name__}: {' '.join(str(seen).split())}"[:300]


def reason(error: BaseException) -> str:
    """Return all that one of our own errors says, on one line; of others the innermost cause."""
    return " ".join(str(error).split())[:300] if isinstance(error, CoreaiError) else line(error)
