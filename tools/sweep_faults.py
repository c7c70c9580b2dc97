"""Injects faults into converted models, and counts those that ``blame`` finds.

Prints a table for ``docs/comparison.md``: faults that change the outputs, those found, and those
found with exactly one line of Python; and the findings in the models without a fault.

    python tools/sweep_faults.py bert llama --targets contrib portable --dtypes float16
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from coreai_onnx.converter import TorchConverter
from coreai_onnx.debugging.blaming import blame
from coreai_onnx.debugging.torch_side import feeds_of
from coreai_onnx.errors import CoreaiError
from coreai_onnx.passes import Target
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.session import Session
from coreai_onnx.table import render
from tests.debugging.faults import Fault, faults
from tests.models.zoo import named

EFFECTIVE = {torch.float32: 1e-4, torch.float16: 1e-2}
"""RMS of the change of an output, relative to its RMS, from which a fault counts."""


@dataclass(frozen=True)
class Outcome:
    """What blame says of one fault."""

    kind: str
    found: bool
    lines: int


def converted(name: str, target: Target, dtype: torch.dtype) -> OnnxProgram:
    """Convert an architecture of the zoo."""
    architecture = named(name)
    exported = architecture.export(architecture.module(dtype), dtype)
    opset = 18 if target == "portable" else None
    program = TorchConverter().add_exported_program(exported).to_onnx(opset_version=opset)
    return program.optimize(target=target)


def outcomes(
    program: OnnxProgram, dtype: torch.dtype, at_most: int, seed: int = 0
) -> Iterator[Outcome]:
    """Yield the outcome of each fault that changes an output.

    Args:
        program: The converted program; it is not changed.
        dtype: Its dtype.
        at_most: Number of faults that are tried, chosen at random.
        seed: Seed of the choice.
    """
    every = list(faults(program.model))
    order = np.random.default_rng(seed).permutation(len(every))
    chosen = [every[i] for i in order[:at_most]]
    right = _outputs(program, program)
    for fault in chosen:
        wrong = OnnxProgram({"main": program.model.clone()})
        node = wrong.model.graph[fault.node]
        try:
            fault.inject(wrong.model, node)
            changed = _change(_outputs(wrong, program), right)
        except CoreaiError:
            continue  # no runtime loads it
        if changed > EFFECTIVE[dtype]:
            yield _outcome(wrong, program, fault, node.name or "")


def _outcome(wrong: OnnxProgram, program: OnnxProgram, fault: Fault, name: str) -> Outcome:
    findings = blame(wrong, program.record(), kernels=False).findings
    nodes = {node.name for finding in findings for node in finding.nodes}
    lines = {line for finding in findings for line in finding.lines}
    return Outcome(fault.kind, name in nodes, len(lines))


def _outputs(program: OnnxProgram, original: OnnxProgram) -> dict[str, np.ndarray]:
    session = Session(program, kernels=False)
    example = original.record().example
    assert example is not None
    module = original.record().program.module()
    outputs = session.run(**feeds_of(session, module, *example))
    return {info.name: outputs[info.name] for info in session.outputs}


def _change(outputs: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> float:
    def change(a: np.ndarray, b: np.ndarray) -> float:
        wide = [x.astype(np.float64) for x in (a, b)]
        if wide[0].shape != wide[1].shape or not np.isfinite(wide[0]).all():
            return float("inf")
        scale = np.sqrt(np.mean(wide[1] ** 2)) or 1.0
        return float(np.sqrt(np.mean((wide[0] - wide[1]) ** 2)) / scale)

    return max(change(outputs[name], right[name]) for name in right)


def main() -> int:
    """Run the sweep and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--targets", nargs="+", default=["onnxruntime", "contrib", "portable"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16"])
    parser.add_argument("--at-most", type=int, default=20, help="faults of each model")
    options = parser.parse_args()
    rows, kinds = [], Counter[tuple[str, str]]()
    for name in options.names:
        for target in options.targets:
            for text in options.dtypes:
                dtype = getattr(torch, text)
                program = converted(name, target, dtype)
                false = len(blame(program, kernels=False).findings)
                done = list(outcomes(program, dtype, options.at_most))
                for one in done:
                    kinds[one.kind, "effective"] += 1
                    kinds[one.kind, "found"] += one.found
                    kinds[one.kind, "one line"] += one.found and one.lines == 1
                found = [one for one in done if one.found]
                single = sum(one.lines == 1 for one in found)
                rows.append((name, target, text, len(done), len(found), single, false))
                print(*rows[-1], [o for o in done if not o.found or o.lines != 1], flush=True)
    header = ("model", "target", "dtype", "effective", "found", "one line", "false alarms")
    print(render(header, rows))
    names = sorted({kind for kind, _ in kinds})
    columns = ("effective", "found", "one line")
    print(render(("fault", *columns), [(k, *(kinds[k, c] for c in columns)) for k in names]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
