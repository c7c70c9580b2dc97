"""The kernels against onnxruntime, torch, OpenVINO and the limits of the machine.

    python -m tools.bench.kernels                     all cases, one thread
    python -m tools.bench.kernels --threads 2         the same on two
    python -m tools.bench.kernels --case decode       cases whose name contains a word
    python -m tools.bench.kernels --case narrow --targets     also once per instruction set
    python -m tools.bench.kernels --part 1/4          a quarter of the cases
    python -m tools.bench.kernels --report            write docs/ from all runs

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
from functools import partial
from typing import Any

import torch

from tools.bench import kernel_report, target_report
from tools.bench.by_target import TARGETS, TargetRunner, Targets
from tools.bench.case import Case
from tools.bench.fused_ops import unchanged
from tools.bench.implementations import errors, implementations, inputs_of, reference
from tools.bench.kernel_cases import CASES
from tools.bench.kernel_report import OURS
from tools.bench.limits import Limits
from tools.bench.machine import processor
from tools.bench.runners import Runner

TURN_SECONDS = 0.004
"""A turn repeats work that is shorter than this, so that the clock's steps do not show."""
WRONG = 0.1
"""An error of this share of the largest output is that of another computation, not timed."""
MIN_ROUNDS, MAX_ROUNDS = 5, 300
SLOW, SLOW_ROUNDS = 8, 2
"""What takes so many times as long as our kernel takes fewer turns."""


def main() -> None:
    """Measure, print, and keep the numbers for the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", action="append", default=[], help="part of a case's name")
    parser.add_argument("--without", action="append", default=[], help="part of a case's name")
    parser.add_argument("--seconds", type=float, default=4.0, help="per case")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--openvino", action="store_true")
    parser.add_argument("--ours", action="store_true", help="no peers, only the limits")
    parser.add_argument("--targets", nargs="*", choices=TARGETS, help="all, if none is named")
    parser.add_argument("--part", default="1/1", help="of the chosen cases, as 1/4")
    parser.add_argument("--report", action="store_true", help="write docs from the kept numbers")
    options = parser.parse_args()
    if options.report:
        names = [case.name for case in CASES]
        kernel_report.write(names)
        target_report.write(names)
        return
    torch.set_num_threads(options.threads)
    chosen = [c for c in CASES if all(word in c.name for word in options.case)]
    chosen = [c for c in chosen if not any(word in c.name for word in options.without)]
    part, parts = map(int, options.part.split("/"))
    limits = Limits(options.threads)
    named = options.targets is not None
    targets = Targets(options.targets or list(TARGETS), options.threads) if named else None
    print(processor())
    for case in chosen[part - 1 :: parts]:
        kept = measure(case, options, limits, targets)
        print(kernel_report.lines([kept]), flush=True)
        kernel_report.keep(options.threads, kept)


def measure(
    case: Case, options: argparse.Namespace, limits: Limits, targets: Targets | None
) -> dict[str, Any]:
    """Times and errors of every implementation of a case, as plain data."""
    inputs = inputs_of(case)
    made = implementations(case, inputs, options)
    if targets is not None:
        for name, runner in targets.runners(case).items():
            made[kernel_report.TARGET + name] = (runner, unchanged)
    wanted = reference(case, inputs)
    found, most = errors(wanted, made), WRONG * float(wanted.abs().max())
    del wanted
    gc.collect()
    work = {name: runner for name, (runner, _) in made.items() if found[name] <= most}
    turns, rates = _take_turns(case, work, limits, options)
    return {
        "name": case.name,
        "processor": processor(),
        "bound": case.bound,
        "flops": case.flops,
        "bytes": case.bytes,
        "share": case.share,
        "milliseconds": case.milliseconds,
        "ratios": dict(case.ratios),
        "seconds": {name: min(took) for name, took in turns.items()},
        "medians": {name: statistics.median(took) for name, took in turns.items()},
        "errors": found,
        "rates": rates,
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
    if case.bound == "fma":
        measured["gemm"] = _library_product()
    if case.bound in ("bf16", "int8") and limits.has_amx:
        measured[case.bound] = partial(limits.amx, int8=case.bound == "int8")
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
            if turn >= SLOW_ROUNDS and min(seconds[name]) > SLOW * min(seconds[OURS]):
                continue
            time.sleep(pause)
            seconds[name].append(_turn(runner, repeats[name], clock) / repeats[name])
        for name, limit in measured.items():
            time.sleep(pause)
            begun = clock()
            amount = limit()
            rates[name] = max(rates[name], amount / (clock() - begun))
        if turn + 1 >= MIN_ROUNDS and time.perf_counter() - started > options.seconds:
            break
    return seconds, rates


def _turn(runner: Runner, repeats: int, clock: Callable[[], float]) -> float:
    """How long a number of calls takes; a process that runs another target measures itself."""
    if isinstance(runner, TargetRunner):
        return runner.seconds(repeats)
    if repeats > 1:
        runner()  # after the others, caches and threads are cold
    begun = clock()
    for _ in range(repeats):
        runner()
    return clock() - begun


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
