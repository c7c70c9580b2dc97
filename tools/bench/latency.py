"""Latency of stock onnxruntime on our file and on torch.onnx's, interleaved, no kernels.

    python -m tools.bench.latency
    python -m tools.bench.latency --models llama vit --targets onnxruntime contrib --rounds 300

The models are those of tests/models, small, so that what a graph costs shows; one thread, whose own
time is taken, so that other work on the machine counts less. Every file is run on the same inputs,
in turn; the outputs are compared before anything is measured. Counted are the nodes that are left
after onnxruntime's own optimizer, functions written out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch

from coreai_onnx import OnnxProgram, TorchConverter
from coreai_onnx.errors import CoreaiError
from tests.models.architecture import Architecture
from tests.models.zoo import named

MODELS = ("bert", "llama", "qwen3_moe", "qwen3_next", "whisper", "vit")
PEERS = (20, 23)


@dataclass
class File:
    """One file to run.

    Attributes:
        name: What made it.
        path: Where it is.
        nodes: Nodes of its main graph.
        session: Its session; None if it cannot be made or run.
        error: Why not.
        left: Nodes after onnxruntime's optimizer.
        times: Seconds of each run.
    """

    name: str
    path: Path
    nodes: int = 0
    session: ort.InferenceSession | None = None
    error: str = ""
    left: int = 0
    times: list[float] = field(default_factory=list)


def main() -> int:
    """Measure, and print one table per model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--targets", nargs="+", default=["onnxruntime", "kernels", "contrib"])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--size", type=int, nargs=2, default=(1, 16), help="batch and length")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(f"onnxruntime {ort.__version__}, torch {torch.__version__}, one thread")
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            run(named(name), Path(folder), options)
    return 0


def run(architecture: Architecture, folder: Path, options: argparse.Namespace) -> None:
    """Make the files of one model, compare them and measure them."""
    exported = architecture.export(architecture.module())
    files = [peer(exported, folder, opset) for opset in PEERS]
    files += [ours(exported, folder, target) for target in options.targets]
    arguments = architecture.arguments(*options.size)
    feeds = {name: tensor.numpy() for name, tensor in arguments.items()}
    expected = None
    for file in files:
        expected = start(file, feeds, folder, expected)
    ready = [file for file in files if file.session is not None]
    for _ in range(options.rounds):
        for file in ready:
            begin = time.thread_time()
            file.session.run(None, given(file.session, feeds))
            file.times.append(time.thread_time() - begin)
    report(architecture.name, files)


def ours(exported: torch.export.ExportedProgram, folder: Path, target: str) -> File:
    """Convert and optimize for a target."""
    program: OnnxProgram = TorchConverter().add_exported_program(exported).to_onnx()
    file = File(f"coreai_onnx, {target}", folder / f"{target}.onnx")
    try:
        program.optimize(target=target).save(file.path)
        file.nodes = len(program.model.graph)
    except CoreaiError as error:
        file.error = str(error).partition("\n")[0]
    return file


def peer(exported: torch.export.ExportedProgram, folder: Path, opset: int) -> File:
    """Export with torch's own exporter."""
    file = File(f"torch.onnx, opset {opset}", folder / f"torch{opset}.onnx")
    try:
        program = torch.onnx.export(exported, dynamo=True, opset_version=opset, verbose=False)
        program.save(file.path)
        file.nodes = len(program.model.graph)
    except Exception as error:  # noqa: BLE001 - whatever it raises is a result
        file.error = f"does not export ({type(error).__name__})"
    return file


def start(
    file: File, feeds: dict[str, np.ndarray], folder: Path, expected: list[np.ndarray] | None
) -> list[np.ndarray] | None:
    """Make the session, run it once, and compare its outputs with those of the first file."""
    if file.error:
        return expected
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    optimized = folder / "optimized.onnx"
    options.optimized_model_filepath = str(optimized)
    try:
        session = ort.InferenceSession(str(file.path), options)
        outputs = session.run(None, given(session, feeds))
    except Exception as error:  # noqa: BLE001 - that a file does not run is a result, too
        file.error = f"does not run ({str(error).rpartition('Message: ')[2][:60]})"
        return expected
    file.session = session
    file.left = len(onnx.load(optimized, load_external_data=False).graph.node)
    for actual, wanted in zip(outputs, expected or outputs, strict=True):
        worst = np.max(np.abs(actual - wanted) / (1 + np.abs(wanted)), initial=0.0)
        if worst > 1e-3:  # the times of a file that computes something else mean nothing
            file.error = f"differs by {worst:.1e}"
    return expected or outputs


def given(session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs that a session takes."""
    return {i.name: feeds[i.name] for i in session.get_inputs()}


def report(name: str, files: list[File]) -> None:
    """Print one table; ratios are to the file above with the shortest time."""
    print(
        f"\n| {name} | nodes | left by onnxruntime | min µs | median µs | × opset 20 | × opset 23 |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    peers = [min(file.times, default=0.0) for file in files[: len(PEERS)]]
    for file in files:
        if file.error:
            print(f"| {file.name} | – | – | {file.error} | – | – | – |")
            continue
        best, middle = min(file.times), statistics.median(file.times)
        ratios = " | ".join(f"{p / best:.2f}" if p else "–" for p in peers)
        print(
            f"| {file.name} | {file.nodes} | {file.left} | {best * 1e6:.0f} | {middle * 1e6:.0f} "
            f"| {ratios} |"
        )


if __name__ == "__main__":
    sys.exit(main())
