"""Injects faults into converted models, and counts those that ``blame`` finds.

Prints tables for ``docs/comparison.md``: faults that change the outputs, those found, and those
found with exactly one line of Python; and the findings in the models without a fault.

    python tools/sweep_faults.py bert llama --targets contrib --dtypes float16 --to out.jsonl
    python tools/sweep_faults.py --tables out.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch._dynamo.exc import UserError
from torch.export import ExportedProgram
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

from coreai_onnx.converter import TorchConverter
from coreai_onnx.debugging.blaming.blame import blame
from coreai_onnx.debugging.blaming.search import Finding
from coreai_onnx.debugging.reference.torch_side import feeds_of
from coreai_onnx.errors import CoreaiError
from coreai_onnx.messages import render
from coreai_onnx.passes import Target
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.session import Session
from tests.debugging.faults import Fault, faults
from tests.models.architecture import Architecture
from tests.models.test_caches import arguments, decoder
from tests.models.zoo import named

EFFECTIVE = {torch.float32: 1e-4, torch.float16: 1e-2}
"""RMS of the change of an output, relative to its RMS, from which a fault counts."""


@dataclass(frozen=True)
class Outcome:
    """What blame says of one fault.

    Attributes:
        kind: Kind of the fault.
        found: Whether the changed node is in a finding.
        lines: Number of lines of Python in the findings.
        node: Op and name of the changed node.
    """

    kind: str
    found: bool
    lines: int
    node: str = ""


def converted(name: str, target: Target, dtype: torch.dtype) -> OnnxProgram:
    """Convert an architecture of the zoo."""
    exported = _with_cache(name, dtype) if name in CACHED else _of_zoo(named(name), dtype)
    opset = 18 if target == "portable" else None
    program = TorchConverter().add_exported_program(exported).to_onnx(opset_version=opset)
    return program.optimize(target=target)


CACHED = {"llama_cache": "llama", "gemma3_cache": "gemma3"}
"""Decoders of ``tests/models/test_caches.py``, whose caches are states."""


def _with_cache(name: str, dtype: torch.dtype) -> ExportedProgram:
    module = TorchExportableModuleForDecoderOnlyLM(decoder(CACHED[name]).to(dtype))
    with torch.no_grad():
        program: ExportedProgram = module.export(**arguments([5, 9, 2], 0), strict=False)
    return program


def _of_zoo(architecture: Architecture, dtype: torch.dtype) -> ExportedProgram:
    try:
        return architecture.export(architecture.module(dtype), dtype)
    except UserError:  # torch specializes the sizes of waveforms in float16
        fixed = replace(architecture, dynamic={})
        return fixed.export(fixed.module(dtype), dtype)


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
    chosen = sample_of(list(faults(program.model)), at_most, seed)
    feeds = _feeds(program)
    right = _outputs(program, feeds)
    for fault in chosen:
        wrong = OnnxProgram({"main": program.model.clone()})
        node = wrong.model.graph[fault.node]
        try:
            fault.inject(wrong.model, node)
            changed = _change(_outputs(wrong, feeds), right)
        except CoreaiError:
            continue  # no runtime loads it
        if changed > EFFECTIVE[dtype]:
            yield _outcome(wrong, program, fault, node.name or "")


def sample_of(every: Sequence[Fault], at_most: int, seed: int) -> list[Fault]:
    """Return faults chosen at random, of as many kinds as possible."""
    order = np.random.default_rng(seed).permutation(len(every))
    kinds: dict[str, list[Fault]] = {}
    for i in order:
        kinds.setdefault(every[i].kind, []).append(every[i])
    turns = itertools.zip_longest(*kinds.values())
    return [fault for turn in turns for fault in turn if fault is not None][:at_most]


def _outcome(wrong: OnnxProgram, program: OnnxProgram, fault: Fault, name: str) -> Outcome:
    findings = blame(wrong, program.record(), kernels=False).findings
    nodes = {node.name for finding in findings for node in finding.nodes}
    lines = {line for finding in findings for line in finding.lines}
    op = program.model.graph[fault.node].op_type  # a fault may insert nodes before it
    return Outcome(fault.kind, name in nodes, len(lines), f"{op} {name}")


def _feeds(program: OnnxProgram) -> dict[str, object]:
    """Return the example inputs of a program by name."""
    example = program.record().example
    assert example is not None
    session = Session(program, kernels=False)
    return feeds_of(session, program.record().program.module(), *example)


def _outputs(program: OnnxProgram, feeds: dict[str, object]) -> dict[str, np.ndarray]:
    session = Session(program, kernels=False)
    outputs = session.run(**feeds)
    states = dict(outputs.states) if session.states else {}
    return {info.name: outputs[info.name] for info in session.outputs} | states


def _change(outputs: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> float:
    def change(a: np.ndarray, b: np.ndarray) -> float:
        wide = [x.astype(np.float64) for x in (a, b)]
        if wide[0].shape != wide[1].shape or not np.isfinite(wide[0]).all():
            return float("inf")
        scale = np.sqrt(np.mean(wide[1] ** 2)) or 1.0
        return float(np.sqrt(np.mean((wide[0] - wide[1]) ** 2)) / scale)

    return max(change(outputs[name], right[name]) for name in right)


def kernel_outcomes(program: OnnxProgram, op: str) -> Iterator[Outcome]:
    """Yield the outcome of each call of an op whose kernel is wrong in the current library.

    Args:
        program: The converted program.
        op: The op type, without its variant.
    """
    findings = [one for one in blame(program, kernels=True).findings if one.kind == "kernel"]
    for node in program.model.graph:
        if node.domain == "ai.coreai" and node.op_type.partition(".")[0] == op:
            mine = [one for one in findings if node.name in {n.name for n in one.nodes}]
            lines = {line for one in mine for line in one.lines}
            yield Outcome(f"wrong kernel of {op}", bool(mine), len(lines), node.name or "")


def swept(
    name: str, target: Target, text: str, at_most: int, kernel: str | None = None
) -> dict[str, Any]:
    """Return the outcomes of one program as a line of the log."""
    dtype = getattr(torch, text)
    program = converted(name, target, dtype)
    false = len(blame(program, kernels=False).findings)
    found = kernel_outcomes(program, kernel) if kernel else outcomes(program, dtype, at_most)
    done = [asdict(one) for one in found]
    return {"model": name, "target": target, "dtype": text, "false alarms": false, "faults": done}


def clean_runs(name: str, target: Target, text: str, seeds: int) -> dict[str, Any]:
    """Return what ``blame`` finds in a program without a fault, as a line of the log.

    Args:
        name: The architecture.
        target: The target.
        text: The dtype.
        seeds: Number of input sets; the first is that of the export, others have other sizes.
    """
    dtype = getattr(torch, text)
    runs: list[list[str]] = []
    line: dict[str, Any] = {"model": name, "target": target, "dtype": text, "clean": runs}
    try:
        program = converted(name, target, dtype)
        for seed in range(seeds):
            inputs = _inputs(name, program, dtype, seed)
            findings = blame(program, None, inputs, kernels=True).findings
            runs.append([_described(one) for one in findings])
    except (CoreaiError, UserError) as error:  # such as a module that torch cannot export
        line["error"] = str(error)
    return line | {"false alarms": sum(map(len, runs)), "faults": []}


def _inputs(name: str, program: OnnxProgram, dtype: torch.dtype, seed: int) -> Any:
    if seed == 0:
        return None
    architecture = named(name)
    dynamic = any(not isinstance(d, int) for x in program.model.graph.inputs for d in x.shape or ())
    # From the last on: the second may be smaller than the export allows.
    size = architecture.sizes[-seed % len(architecture.sizes) if dynamic else 0]
    torch.manual_seed(seed)
    inputs = architecture.inputs(*size)
    return {n: x.to(dtype) if x.is_floating_point() else x for n, x in inputs.items()}


def _described(finding: Finding) -> str:
    nodes = ", ".join(f"{node.op} {node.name}" for node in (*finding.nodes, *finding.inside))
    return f"{finding.kind}: {nodes}: {', '.join(finding.values)}: {finding.difference}"


def tables(lines: Sequence[dict[str, Any]]) -> str:
    """Return the tables by model, by target and dtype, and by kind of fault."""
    parts = []
    for keys in (("model",), ("target", "dtype"), ()):
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for line in lines:
            groups.setdefault(tuple(line[key] for key in keys), []).append(line)
        rows = []
        for group, members in groups.items():
            faults_ = [one for line in members for one in line["faults"]]
            rows.append((*group, *_counts(faults_), sum(x["false alarms"] for x in members)))
        parts.append(render((*keys, *_COLUMNS, "false alarms"), rows))
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        for one in line["faults"]:
            by_kind.setdefault(one["kind"], []).append(one)
    rows = [(kind, *_counts(done)) for kind, done in sorted(by_kind.items())]
    return "\n\n".join([*parts, render(("fault", *_COLUMNS), rows)])


_COLUMNS = ("effective", "found", "one line")


def _counts(faults_: Sequence[dict[str, Any]]) -> tuple[int, int, int]:
    found = [one for one in faults_ if one["found"]]
    return len(faults_), len(found), sum(one["lines"] == 1 for one in found)


def main() -> int:
    """Run the sweep and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument(
        "--targets", nargs="+", default=["onnxruntime", "kernels", "contrib", "portable"]
    )
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16"])
    parser.add_argument("--at-most", type=int, default=20, help="faults of each model")
    parser.add_argument("--clean", type=int, help="number of input sets; no faults are injected")
    parser.add_argument("--kernel", help="the op that is wrong in the library of COREAI_ONNX_OPS")
    parser.add_argument("--to", type=Path, help="append a line of JSON for each model")
    parser.add_argument("--tables", type=Path, help="print the tables of such a file")
    options = parser.parse_args()
    lines = []
    for name in options.names:
        for target, text in itertools.product(options.targets, options.dtypes):
            if options.clean:
                lines.append(clean_runs(name, target, text, options.clean))
            else:
                lines.append(swept(name, target, text, options.at_most, options.kernel))
            if options.to is not None:
                with options.to.open("a") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    if options.tables is not None:
        lines += [json.loads(line) for line in options.tables.read_text().splitlines()]
    print(tables(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
