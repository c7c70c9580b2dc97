"""Processes that run one model: the memory they share, and the time to a first result (Linux).

    python -m tools.bench.processes FOLDER --gguf gemma-3-270m-q4_k_m.gguf \\
        --llama /llama/bin/python --cpp /build/first_result

FOLDER gets a Llama of 100 million parameters in float32 and in 4 bits, and the GGUF file, unless it
has them. Each implementation runs one token in a process of its own; then there are as many as
``--processes`` at once. Times are from the start of a process to its result, less those of a Python
(or, for C++, of ``/bin/true``) that does nothing, with the files in the page cache.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import onnx
import onnx.parser

import coreai_onnx
from coreai_onnx.messages import render
from coreai_onnx.model.files.mapped_tensors import memory_bytes
from coreai_onnx.model.inventory import standard_op_types
from coreai_onnx.program import OnnxProgram
from tools.bench.generation_models import write_source
from tools.bench.gguf_models import proportional_memory

READY = "print('ready', flush=True); import sys; sys.stdin.read()"
FEEDS = """
import numpy as np
def value(shape, is_cache):
    if not is_cache:
        return np.ones([1] * len(shape), np.int64)
    return np.zeros((1, shape[1], 0, shape[3]), np.float32)
"""
OURS = f"""
import sys, coreai_onnx
{FEEDS}
session = coreai_onnx.session(sys.argv[1], threads=1, **eval(sys.argv[2]))
states = {{x.name: value(x.dims, True) for x in session.state_inputs}}
session.run(**{{x.name: value(x.dims, False) for x in session.inputs}}, **states)
{READY}
"""
STOCK = f"""
import sys, onnxruntime as ort
{FEEDS}
options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
given = {{x.name: value(x.shape, "past" in x.name) for x in session.get_inputs()}}
session.run(["logits"], given)
{READY}
"""
EMPTY = """<ir_version: 10, opset_import: ["": 21]>
    empty (int64[1, 1] ids) => (int64[1, 1] logits) { logits = Identity(ids) }"""
LLAMA = f"""
import sys
from llama_cpp import Llama
model = Llama(sys.argv[1], n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
model.eval([1])
{READY}
"""


def models(folder: Path, gguf: Path | None) -> dict[str, tuple[Path, Path | None]]:
    """Write the models; return the folders for the kernels and for stock onnxruntime by name."""
    source = folder / "transformers"
    if not source.exists():
        write_source(source)
    four = {"bits": 4, "group_size": 32, "symmetric": True}
    wanted = {"Llama 100 M, float32": (source, None), "Llama 100 M, 4 bits": (source, four)}
    if gguf is not None:
        wanted["Gemma 3 270M, Q4_K_M"] = (gguf, None)
    found: dict[str, tuple[Path, Path | None]] = {}
    for number, (name, (origin, quantization)) in enumerate(wanted.items()):
        places = folder / f"kernels_{number}", folder / f"stock_{number}"
        for place, target in zip(places, ("kernels", "onnxruntime"), strict=True):
            if place.exists() or (target == "onnxruntime" and origin is gguf):
                continue  # stock onnxruntime would dequantize Q4_K_M in each run
            coreai_onnx.export_model(
                origin, place, target=target, check=False, quantization=quantization
            )
            # Weights in a file of their own are mapped.
            program = OnnxProgram.load(place / "model.onnx")
            program.save(place / "mapped.onnx", external_data=True)
        found[name] = places[0], None if origin is gguf else places[1]
    return found


def commands(
    folder: Path, stock: Path | None, options: argparse.Namespace
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the implementations: a name, the command, and the command of a process without work."""
    path, packed = str(folder / "mapped.onnx"), str(folder / "packed")
    nothing = [sys.executable, "-c", READY]
    ours = [sys.executable, "-c", OURS, path]
    yield "session", [*ours, "{}"], nothing
    shared = repr({"packed_weights": packed, "prepack": False})
    yield "session, packed_weights, prepack=False", [*ours, shared], nothing
    if options.cpp:
        library = str(coreai_onnx.ops_library_path())
        op_types = ",".join(standard_op_types(OnnxProgram.load(path).model))
        more = [library, op_types, packed]
        yield "C++, packed_weights", [str(options.cpp), path, *more], ["/bin/true"]
        graph = max(folder.glob("packed.*.onnx"), key=lambda file: file.stat().st_mtime)
        words = [str(options.cpp), str(graph), *more, "optimized"]
        yield "C++, packed_weights, prepared graph", words, ["/bin/true"]
    # What of these is onnxruntime's own.
    empty = folder / "empty.onnx"
    onnx.save(onnx.parser.parse_model(EMPTY), empty)
    yield (
        "an empty model in onnxruntime, Python",
        [sys.executable, "-c", STOCK, str(empty)],
        nothing,
    )
    if options.cpp:
        yield "an empty model in onnxruntime, C++", [str(options.cpp), str(empty)], ["/bin/true"]
    if stock is not None:
        yield (
            "stock onnxruntime",
            [sys.executable, "-c", STOCK, str(stock / "mapped.onnx")],
            nothing,
        )
    if options.llama and options.gguf and stock is None:
        words = [str(options.llama), "-c", LLAMA, str(options.gguf)]
        yield "llama.cpp", words, [str(options.llama), "-c", READY]


def started(command: Sequence[str]) -> tuple[subprocess.Popen[str], float, float]:
    """Start a process; return it with the wall time and CPU time to its first result in seconds."""
    begin = time.perf_counter()
    # As of an installed package, whose modules are compiled.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    running = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout is not None
    line = running.stdout.readline()
    wall = time.perf_counter() - begin
    if command[0] == "/bin/true":
        return running, wall, 0.0
    assert line == "ready\n", " ".join(command)
    threads = Path(f"/proc/{running.pid}/task").iterdir()
    cpu = sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9
    return running, wall, cpu


def end(running: subprocess.Popen[str]) -> None:
    """End a process by the end of its input."""
    running.communicate()


def times(command: Sequence[str], nothing: Sequence[str], rounds: int) -> tuple[str, str]:
    """Return wall and CPU time to the first result in milliseconds, minima and medians."""
    walls, cpus = [], []
    for _ in range(rounds):
        (empty, wall, cpu), (running, its_wall, its_cpu) = started(nothing), started(command)
        for one in (empty, running):
            end(one)
        walls.append(1e3 * (its_wall - wall))
        cpus.append(1e3 * (its_cpu - cpu))
    return tuple(f"{min(x):.0f} / {median(x):.0f}" for x in (walls, cpus))  # type: ignore[return-value]


def memory(command: Sequence[str], count: int) -> tuple[float, float]:
    """Return the proportional set size of one process, and of several at once, in MiB.

    Several that would not fit into half of the memory are not started: their size is NaN.
    """
    running, sizes = [], []
    for _ in range(count):
        running.append(started(command)[0])
        sizes.append(sum(proportional_memory(one.pid) for one in running) / 1024)
        if sizes[0] * count > (memory_bytes() >> 21):
            sizes.append(math.nan)
            break
    for one in running:
        end(one)
    return sizes[0], sizes[-1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--llama", type=Path, help="the Python of an environment with llama.cpp")
    parser.add_argument("--cpp", type=Path, help="first_result.cc, compiled as docs/examples/cpp")
    parser.add_argument("--only", default="", help="a part of the names of the models to measure")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    several = f"{options.processes} processes"
    header = ("", "one process", several, "ratio", "first result, wall ms", "CPU ms")
    for name, (folder, stock) in models(options.folder.absolute(), options.gguf).items():
        if options.only not in name:
            continue
        rows = []
        for label, command, nothing in commands(folder, stock, options):
            for _ in range(2):  # writes the packed weights and the graph, and fills the page cache
                end(started(command)[0])
            one, all_of_them = memory(command, options.processes)
            walls, cpus = times(command, nothing, options.rounds)
            sizes = f"{one:.0f} MiB", f"{all_of_them:.0f} MiB"
            rows.append((label, *sizes, f"{all_of_them / one:.2f}", walls, cpus))
            print(*rows[-1], flush=True)
        print(f"{name}\n{render(header, rows)}\n", flush=True)


if __name__ == "__main__":
    main()
