"""Products with few-bit weights: our kernel and body beside onnxruntime's MatMul and MatMulNBits.

    python -m tools.bench.few_bits
    python -m tools.bench.few_bits --bits 8 --rows 1 128 --threads 1

All of a line run in one process, one after the other, round by round. Milliseconds are minima, of
process CPU time for one thread and of wall time for more; in brackets, the time of float32 divided
by it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from coreai_onnx.messages import render
from coreai_onnx.runtime import ops_library_path
from tools.bench.composite_model import composite_model, feeds_of
from tools.bench.fused_ops import MICROSOFT, one_node
from tools.bench.runners import OnnxRuntimeRunner, Runner

SHAPES = ((2048, 2816), (768, 2048))
"""Inputs and outputs."""
GROUP = 32
_WEIGHT = (1, 2)
"""The places of codes and scales."""


def runners(rows: int, inputs: int, outputs: int, bits: int, threads: int) -> dict[str, Runner]:
    """Return every implementation of one product with a random weight."""
    groups, generator = inputs // GROUP, torch.Generator().manual_seed(1)
    x = torch.randn(rows, inputs, generator=generator)
    codes = torch.randint(
        0, 256, (outputs, groups, GROUP * bits // 8), generator=generator, dtype=torch.uint8
    )
    scales = torch.rand(outputs, groups, generator=generator).half() / 32
    given = [x, codes, scales]
    found: dict[str, Runner] = {}
    weight = torch.randn(inputs, outputs, generator=generator)
    found["float32"] = _onnx("MatMul", {"x": x}, {"w": weight}, threads)
    if bits != 3:
        for level in (0, 4):
            attributes = {"K": inputs, "N": outputs, "bits": bits, "block_size": GROUP}
            constants = {"codes": codes, "scales": scales.float()}
            found[f"MatMulNBits {level}"] = _onnx(
                "MatMulNBits", {"x": x}, constants, threads, accuracy_level=level, **attributes
            )
    library = ops_library_path()
    for rounding in (0, 8):
        attributes = {"bits": bits, "group_size": GROUP, "activation_bits": rounding}
        model = composite_model("linear_nbits", given, attributes, constants=_WEIGHT)
        feeds = feeds_of("linear_nbits", given, constants=_WEIGHT)
        name = "rounded" if rounding else "plain"
        found[f"body {name}"] = OnnxRuntimeRunner(model, feeds, threads)
        found[f"kernel {name}"] = OnnxRuntimeRunner(model, feeds, threads, library=library)
    return found


def _onnx(
    op_type: str,
    feeds: Mapping[str, torch.Tensor],
    constants: Mapping[str, torch.Tensor],
    threads: int,
    **attributes: Any,
) -> Runner:
    """Return a model of one of onnxruntime's ops whose weight is an initializer."""
    domain = MICROSOFT if attributes else ""
    model = one_node(op_type, feeds, domain=domain, constants=constants, **attributes)
    return OnnxRuntimeRunner(model, feeds, threads)


def milliseconds(
    found: Mapping[str, Runner], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the least time of a call of each by a clock, measured in turns."""
    least = dict.fromkeys(found, float("inf"))
    for _ in range(rounds):
        for name, run in found.items():
            begin = clock()
            run()
            least[name] = min(least[name], (clock() - begin) * 1e3)
    return least


def main() -> int:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    lines: list[tuple[str, ...]] = []
    header: tuple[str, ...] = ()
    for threads in options.threads:
        for bits in options.bits:
            for inputs, outputs in SHAPES:
                for rows in options.rows:
                    found = runners(rows, inputs, outputs, bits, threads)
                    clock = time.process_time if threads == 1 else time.perf_counter
                    times = milliseconds(found, options.rounds, clock)
                    base = times["float32"]
                    cells = [f"{t:.2f} ({base / t:.2f})" for t in times.values()]
                    shape = f"{rows}×{inputs}×{outputs}"
                    lines.append((str(threads), str(bits), shape, *cells))
                    header = ("threads", "bits", "product", *times)
    print(render(header, lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
