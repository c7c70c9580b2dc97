"""The kernels against onnxruntime, torch, OpenVINO and the limits of the machine.

    python -m tests.bench.kernels                     all cases, one thread
    python -m tests.bench.kernels --threads 2         the same on two
    python -m tests.bench.kernels --case decode       cases whose name contains a word
    python -m tests.bench.kernels --report            write docs/ from both runs

All implementations of a case take turns in one process, on inputs and outputs bound beforehand;
so do the limits. One thread is measured in CPU time of the process (what else runs does not
count), two in wall time (which is true on a quiet machine only), beside our kernels on one thread.
Minima and medians over the rounds are kept.
The same run compares every result with the composite's reference in float64. Nothing is asserted.

``--inductor`` and ``--openvino`` add those peers. COREAI_ONNX_OPS names another kernel library,
COREAI_OPS_TARGET another instruction set.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from coreai_onnx.composite_ops import COMPOSITES
from coreai_onnx.runtime import ops_library_path
from tests.bench import kernel_report
from tests.bench.case import Case, Inputs
from tests.bench.composite_model import composite_model, feeds_of
from tests.bench.fused_ops import unchanged
from tests.bench.kernel_cases import CASES
from tests.bench.limits import Limits
from tests.bench.runners import OnnxRuntimeRunner, OpenVinoRunner, Runner, TorchRunner

OURS = kernel_report.OURS
ONE_THREAD = kernel_report.ONE_THREAD
TURN_SECONDS = 0.004
"""A turn repeats work that is shorter than this, so that the clock's steps do not show."""
MIN_ROUNDS, MAX_ROUNDS = 5, 300
Layout = Callable[[torch.Tensor], torch.Tensor]


def main() -> None:
    """Measure, print, and keep the numbers for the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", action="append", default=[], help="part of a case's name")
    parser.add_argument("--seconds", type=float, default=4.0, help="per case")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--openvino", action="store_true")
    parser.add_argument("--ours", action="store_true", help="no peers, only the limits")
    parser.add_argument("--report", action="store_true", help="write docs from the kept numbers")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = [c for c in CASES if all(word in c.name for word in options.case)]
    if not options.report:
        limits = Limits(options.threads)
        for case in chosen:
            kept = measure(case, options, limits)
            print(kernel_report.lines([kept]), flush=True)
            kernel_report.keep(options.threads, kept)
    else:
        kernel_report.write()


def measure(case: Case, options: argparse.Namespace, limits: Limits) -> dict[str, Any]:
    """Times and errors of every implementation of a case, as plain data."""
    torch.manual_seed(0)
    inputs = case.inputs()
    runners = _runners(case, inputs, options)
    errors = _errors(case, inputs, runners)
    gc.collect()
    work = {name: runner for name, (runner, _) in runners.items()}
    turns, rates = _take_turns(case, work, limits, options)
    return {
        "name": case.name,
        "bound": case.bound,
        "flops": case.flops,
        "bytes": case.bytes,
        "share": case.share,
        "milliseconds": case.milliseconds,
        "ratios": dict(case.ratios),
        "seconds": {name: min(took) for name, took in turns.items()},
        "medians": {name: statistics.median(took) for name, took in turns.items()},
        "errors": errors,
        "rates": rates,
    }


def _runners(
    case: Case, inputs: Inputs, options: argparse.Namespace
) -> dict[str, tuple[Runner, Layout]]:
    """Every implementation by name, with what brings its output into the composite's layout."""
    threads = options.threads
    constants = case.constants
    model = composite_model(case.composite, inputs, case.attributes, constants=constants)
    feeds = feeds_of(case.composite, inputs, constants=constants)
    aliases = {"result_0": next(iter(feeds))} if case.in_place else {}

    def in_onnxruntime(threads: int, library: Path | None = None) -> tuple[Runner, Layout]:
        runner = OnnxRuntimeRunner(model, feeds, threads, library=library, aliases=aliases)
        return runner, unchanged

    made = {OURS: in_onnxruntime(threads, ops_library_path())}
    if threads > 1:
        made[ONE_THREAD] = in_onnxruntime(1, ops_library_path())
    if options.ours:
        return made
    for make in case.fused:
        fused = make(inputs, case.attributes)
        runner = OnnxRuntimeRunner(fused.model, fused.feeds, threads, aliases=fused.aliases)
        made[fused.name] = (runner, fused.layout)
    made["onnxruntime body"] = in_onnxruntime(threads)
    made["torch"] = (TorchRunner(case.torch, inputs), unchanged)
    if options.inductor:
        made["inductor"] = (TorchRunner(case.torch, inputs, compiled=True), unchanged)
    if options.openvino and torch.bfloat16 not in {t.dtype for t in feeds.values()}:
        plain = composite_model(
            case.composite, inputs, case.attributes, opset=18, constants=constants
        )
        try:
            made["OpenVINO"] = (OpenVinoRunner(plain, feeds, threads), unchanged)
        except RuntimeError as error:
            print(f"OpenVINO does not run {case.name}: {str(error).splitlines()[-1]}")
    return made


def _errors(
    case: Case, inputs: Inputs, runners: dict[str, tuple[Runner, Layout]]
) -> dict[str, float]:
    """Largest difference from the reference in float64, on the same inputs."""
    wide = [x.double() if x is not None and x.is_floating_point() else x for x in inputs]
    with torch.inference_mode():
        reference = COMPOSITES[case.composite].reference(*wide, **case.attributes)
        first = reference[0] if isinstance(reference, tuple) else reference
        return {
            name: float((layout(runner.result()).double() - first).abs().max())
            for name, (runner, layout) in runners.items()
        }


def _take_turns(
    case: Case, work: dict[str, Runner], limits: Limits, options: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of each implementation's turns, greatest rate of each limit, all interleaved."""
    clock = time.process_time if options.threads == 1 else time.perf_counter
    # Between turns on several threads, the pool that had its turn stops spinning.
    pause = 0.0 if options.threads == 1 else 0.02
    size = int(case.bytes)
    bandwidth_repeats = max(1, int(TURN_SECONDS * 1e10 / size))
    measured: dict[str, Callable[[], float]] = {"fma": limits.fma}
    if case.bound in ("fma", "bf16"):
        measured["gemm"] = _library_product()
    if case.bound == "bf16" and limits.has_amx:
        measured["bf16"] = limits.amx
    elif case.bound == "bf16" and limits.has_bf16:
        measured["bf16"] = limits.bf16
    if case.bound == "read":
        measured["read"] = lambda: limits.read(size, bandwidth_repeats)
    if case.bound == "copy":
        measured["copy"] = lambda: limits.copy(size, bandwidth_repeats)
    repeats = {name: _repeats(runner) for name, runner in work.items()}
    seconds: dict[str, list[float]] = {name: [] for name in work}
    rates = dict.fromkeys(measured, 0.0)
    started = time.perf_counter()
    for turn in range(MAX_ROUNDS):
        for name, runner in work.items():
            time.sleep(pause)
            begun = clock()
            for _ in range(repeats[name]):
                runner()
            seconds[name].append((clock() - begun) / repeats[name])
        for name, limit in measured.items():
            time.sleep(pause)
            begun = clock()
            amount = limit()
            rates[name] = max(rates[name], amount / (clock() - begun))
        if turn + 1 >= MIN_ROUNDS and time.perf_counter() - started > options.seconds:
            break
    return seconds, rates


def _library_product() -> Callable[[], float]:
    """A large product of matrices in torch's library, whose return is its number of operations."""
    size = 1024
    left, right, out = torch.ones(size, size), torch.ones(size, size), torch.empty(size, size)

    def multiply() -> float:
        torch.mm(left, right, out=out)
        return 2.0 * size**3

    return multiply


def _repeats(runner: Runner) -> int:
    runner()
    begun = time.perf_counter()
    runner()
    return max(1, round(TURN_SECONDS / (time.perf_counter() - begun)))


if __name__ == "__main__":
    main()
