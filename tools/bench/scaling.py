"""What a run costs with more threads and cores: measured parts, a prediction, and measured times.

    python -m tools.bench.scaling --folder /tmp/llama           # writes the model there once
    python -m tools.bench.scaling --folder /tmp/llama --first-touch

Each number of cores and threads has a process of its own, whose affinity is set before the first
thread starts. Measured there, as minima: a parallel region of small items, and one of eight items
of 32,768 elements; the bandwidth of reading; and the Llama of ``generation.py``, a prompt of 128
tokens and one token after 512. On one thread, onnxruntime's profile gives the time of each node.
Each is then divided by what can take part of it, and the rest is added:

    time = (between nodes + sum of node / min(n, c, items) + regions * region) * max(1, n / c)

``n`` are threads, ``c`` cores, and ``items`` the parts that a kernel splits its work into. Products
of one token read the weights once: they are divided by no more than the gain in bandwidth. A node
of one item has no region. Threads that wait spin: those beyond the cores delay the others by as
much as they have turns, hence the last factor. One core is measured in CPU time of the process,
which is wall time where nothing else runs; two cores in wall time, which needs an idle machine or a
high priority.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from coreai_onnx.messages import render
from coreai_onnx.runtime import ops_library_path

CORES_AND_THREADS = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (2, 8), (2, 16)]
UNMEASURED = (4, 8)
"""Cores for which the prediction alone is shown, with 2 and with as many times the bandwidth."""
STEPS = ("prefill", "decode")
Found = dict[tuple[int, int], dict[str, Any]]
ELEMENTS_PER_ITEM = 32 * 1024
"""kElementsPerThreadItem in custom_ops/ops/row_split.h."""
KEY_HEADS, QUERY_TILES = 4, 8
"""Items of the model's attention: one for the heads of a key head, and tiles of a prompt."""
MODEL = "coreai_onnx_growing_onnxruntime/model.onnx"
SECONDS, PROFILED = 2.0, 20


def main() -> None:
    """Measure each number of cores and threads, predict, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="of tools.bench.generation")
    parser.add_argument("--first-touch", action="store_true", help="only count page faults")
    parser.add_argument("--worker", nargs=2, type=int, metavar=("CORES", "THREADS"))
    options = parser.parse_args()
    path = options.folder / MODEL
    if options.worker:
        cores, threads = options.worker
        os.sched_setaffinity(0, range(cores))
        work = _page_faults if options.first_touch else _measured
        print(json.dumps(work(path, cores, threads)))
        return
    if not path.exists():
        prepare = [sys.executable, "-m", "tools.bench.generation", "--prepare"]
        command = [*prepare, "--only", "growing, kernels", "--folder", str(options.folder)]
        subprocess.run(command, check=True)
    if options.first_touch:
        print(render(["", "opened", "first runs"], _rows_of_faults(options.folder)))
        return
    found = {pair: _in_process(options.folder, *pair) for pair in CORES_AND_THREADS}
    _report(found)


def _in_process(folder: Path, cores: int, threads: int, *more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tools.bench.scaling", "--folder", str(folder), *more]
    command += ["--worker", str(cores), str(threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


# ── in the process of one number of cores and threads ────────────────────────────────────────────
def _measured(path: Path, cores: int, threads: int) -> dict[str, Any]:
    """Minima of wall time in seconds, the profile on one thread, and a hash of the results."""
    # The affinity is set before these start threads.
    from tools.bench.attention_cases import attention_case
    from tools.bench.case import Case
    from tools.bench.generation_worker import File
    from tools.bench.implementations import in_onnxruntime, inputs_of
    from tools.bench.kernel_cases import gated_case
    from tools.bench.limits import Limits

    def of_case(case: Case) -> float:
        runner = in_onnxruntime(case, inputs_of(case), threads, ops_library_path())
        return _fastest(runner, SECONDS / 4)

    answer: dict[str, Any] = {
        "small": of_case(attention_case("small", heads=8, key_heads=8, queries=1, keys=1, dim=8)),
        "elements": of_case(gated_case("swiglu", 8, ELEMENTS_PER_ITEM)),
    }
    limits, size = Limits(min(cores, threads)), path.stat().st_size
    answer["bandwidth"] = size / _fastest(lambda: limits.read(size, 1), SECONDS)
    model = File(str(path), threads, str(ops_library_path()))
    digest = hashlib.sha256()
    for step in STEPS:
        answer[step] = _fastest(partial(model.step, step), SECONDS)
        digest.update(model.logits(step).tobytes())
    answer["bits"] = digest.hexdigest()[:12]
    if threads == 1:
        answer["nodes"] = {step: _profile(path, step) for step in STEPS}
    return answer


def _fastest(work: Callable[[], Any], seconds: float) -> float:
    clock = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = clock()
        work()
        best = min(best, clock() - begin)
    return best


def _profile(path: Path, step: str) -> list[dict[str, Any]]:
    """Operator, fastest time and elements of the result of each node."""
    from tools.bench.generation_worker import File

    with tempfile.TemporaryDirectory() as folder:
        model = File(str(path), 1, str(ops_library_path()), profile=f"{folder}/profile")
        for _ in range(PROFILED):
            model.step(step)
        events = json.loads(Path(model.end_profiling()).read_text())
    return _nodes_of(events)


def _nodes_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event["name"].endswith("_kernel_time"):
            runs.setdefault(event["name"], []).append(event)
    nodes = []
    for called in runs.values():
        last = called[-1]["args"]
        shapes = [next(iter(x.values())) for x in last.get("output_type_shape", [])]
        count = max((_count(shape) for shape in shapes), default=0)
        nodes.append(
            {
                "op": last["op_name"],
                "seconds": min(event["dur"] for event in called[-PROFILED:]) / 1e6,
                "elements": count,
            }
        )
    return nodes


def _count(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


# ── the prediction ───────────────────────────────────────────────────────────────────────────────
PRODUCTS = ("MatMul", "FusedMatMul", "Gemm")
BY_ELEMENTS = ("swiglu", "rms_norm", "skip_rms_norm", "rope")


def _items(node: dict[str, Any], step: str) -> int:
    """Return how many parts the work of a node is split into, whatever the number of threads."""
    operator = node["op"].partition(".")[0]
    if operator in PRODUCTS:
        return sys.maxsize  # onnxruntime cuts its products into as many parts as threads
    if operator == "scaled_dot_product_attention":
        return KEY_HEADS if step == "decode" else QUERY_TILES
    return max(1, node["elements"] // ELEMENTS_PER_ITEM) if operator in BY_ELEMENTS else 1


def _predicted(found: Found, step: str, cores: int, threads: int, gain: float) -> float:
    """Return the seconds of a step; reading the weights gets faster by ``gain``."""
    one, parallel = found[1, 1], min(cores, threads)
    nodes = one["nodes"][step]
    total = one[step] - sum(node["seconds"] for node in nodes)  # between nodes
    region = _region(found, min(cores, 2), min(parallel, 2))
    for node in nodes:
        items = _items(node, step)
        reads = step == "decode" and node["op"] in PRODUCTS
        total += node["seconds"] / min(parallel, items, gain if reads else parallel)
        total += region if items > 1 and parallel > 1 else 0.0
    return float(total) * max(1.0, threads / cores)


def _region(found: Found, cores: int, threads: int) -> float:
    """Return what a parallel region takes beyond its work, which is split evenly."""
    even = found[cores, 1]["elements"] / min(cores, threads)
    return max(0.0, float(found[cores, threads]["elements"] - even))


def _report(found: Found) -> None:
    rows = []
    for (cores, threads), here in found.items():
        small = here["small"] - found[cores, 1]["small"]
        cells = [f"{small * 1e6:.1f}", f"{_region(found, cores, threads) * 1e6:.1f}"]
        cells.append(f"{here['bandwidth'] / 1e9:.1f}")
        gain = max(1.0, found[cores, min(cores, threads)]["bandwidth"] / found[1, 1]["bandwidth"])
        for step in STEPS:
            predicted = _predicted(found, step, cores, threads, gain)
            cells.append(f"{predicted * 1e3:.1f} / {here[step] * 1e3:.1f}")
        rows.append([str(cores), str(threads), *cells])
    for cores in UNMEASURED:
        prompt = _predicted(found, "prefill", cores, cores, 1.0) * 1e3
        token = [_predicted(found, "decode", cores, cores, gain) * 1e3 for gain in (2, cores)]
        rows.append([str(cores), str(cores), "", "", "", f"{prompt:.1f}",
                     f"{token[1]:.1f} to {token[0]:.1f}"])  # fmt: skip
    titles = ["cores", "threads", "small region, µs", "8 items, µs", "read GB/s"]
    print(render([*titles, "prompt, ms", "token, ms"], rows))
    print("predicted / measured; bits:", {here["bits"] for here in found.values()})
    for step in STEPS:
        nodes = found[1, 1]["nodes"][step]
        serial = [node for node in nodes if _items(node, step) == 1]
        inside = sum(node["seconds"] for node in nodes)
        print(
            f"{step}: {len(nodes)} nodes, {len(nodes) - len(serial)} regions; ms between nodes "
            f"{(found[1, 1][step] - inside) * 1e3:.2f}, of nodes of one item "
            f"{sum(node['seconds'] for node in serial) * 1e3:.2f}, of split nodes "
            f"{(inside - sum(node['seconds'] for node in serial)) * 1e3:.2f}"
        )


# ── first touch ──────────────────────────────────────────────────────────────────────────────────
def _page_faults(path: Path, cores: int, threads: int) -> dict[str, Any]:
    """Page faults of the opening thread and of the others, while opening and in the first runs."""
    from tools.bench.generation_worker import File

    del cores
    opener, faults = os.getpid(), {}

    def now() -> tuple[int, int]:
        each = {}
        for task in Path("/proc/self/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            each[int(task.name)] = int(fields[7])
        return each.pop(opener), sum(each.values())

    before = now()
    model = File(str(path), threads, str(ops_library_path()))
    opened = now()
    for _ in range(3):
        for step in STEPS:
            model.step(step)
    after = now()
    faults["opened"] = [opened[i] - before[i] for i in range(2)]
    faults["runs"] = [after[i] - opened[i] for i in range(2)]
    return faults


def _rows_of_faults(folder: Path) -> list[list[str]]:
    found = _in_process(folder, 2, 2, "--first-touch")
    names = ("the opening thread", "the other threads")
    return [[name, str(found["opened"][i]), str(found["runs"][i])] for i, name in enumerate(names)]


if __name__ == "__main__":
    main()
