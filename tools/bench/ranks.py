"""Tokens of ranks beside those of the whole model, and the time of a collective.

    python -m tools.bench.ranks my_llama --ranks 2 4
    python -m tools.bench.ranks gemma-3-270m-q4_k_m.gguf --ranks 2 4 --over hosts --namespaces

Ranks exchange their parts in the memory of this machine, over hosts (``coreai_onnx.scale.Hosts``),
or over hosts in actors of ``ray``. With ``--namespaces``, each of the hosts is a network namespace
with an address of its own, for which Linux needs root. Over hosts, one rank is killed at the end,
and the time is printed after which the others have failed.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from transformers import AutoModelForCausalLM

from coreai_onnx.errors import CoreaiError
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.generation.serving.ranks import Ranks
from coreai_onnx.huggingface.opened import export_ranks
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.scale import Hosts

PROMPT, NEW, RUNS = [2, 651, 6037, 576, 6081, 603], 32, 400
OPTIONS: dict[str, Any] = {"max_new_tokens": NEW, "stop_ids": ()}
BYTES = (2560, 16_384, 1 << 20)
"""Sizes of a part: of a token of Gemma 3 270M, of one of Llama 3 8B, of a prompt."""
PORT = 29511


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    where = "a folder of transformers, or a GGUF file (needs accelerate)"
    parser.add_argument("source", type=Path, nargs="?", help=where)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--over", choices=("memory", "hosts", "ray"), default="memory")
    parser.add_argument("--namespaces", action="store_true")
    parser.add_argument("--as-rank", nargs=3, help=argparse.SUPPRESS)  # of the processes
    arguments = parser.parse_args()
    if arguments.as_rank:
        as_rank(arguments.source, *arguments.as_rank)
        return
    for count in arguments.ranks:
        if arguments.over == "memory":
            run_rank = functools.partial(times, uuid.uuid4().hex, ranks=count)
            with ThreadPoolExecutor(count) as threads:
                results = list(threads.map(run_rank, range(count)))
            print_times(results[0], count)
        elif arguments.over == "hosts":
            with processes(count, None, arguments.namespaces) as ranks:
                print_times(json.loads(ranks[0].stdout.readline()), count)
    if arguments.source is None:
        return
    path, gguf = arguments.source, {}
    if path.is_file():
        path, gguf = path.parent, {"gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **gguf).eval()
    whole = sum(weight.numel() for weight in model.parameters())
    ids = torch.tensor([PROMPT])
    expected = model.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    run = {"memory": in_memory, "hosts": over_hosts, "ray": with_ray}[arguments.over]
    for count in arguments.ranks:
        with tempfile.TemporaryDirectory() as place:
            folder = export_ranks(model, Path(place) / "ranks", count)
            stored = onnx.load(folder / "rank_0" / "model.onnx", load_external_data=False)
            part = sum(int(np.prod(one.dims)) for one in stored.graph.initializer)
            tokens, seconds = run(folder, count, arguments.namespaces)
        same = tokens == expected[0].tolist()
        share = f"{part / whole:.3f} of the weights"
        print(f"{count} ranks: same tokens {same}, {share}, {seconds:.1f} s for {NEW} tokens")


def in_memory(folder: Path, count: int, namespaces: bool) -> tuple[list[int], float]:
    """Return the tokens of processes of this machine, and the time."""
    del count, namespaces
    with Ranks(folder) as ranks:
        start = time.perf_counter()
        tokens = np.asarray(ranks.generate(PROMPT, **OPTIONS)).tolist()
        return tokens, time.perf_counter() - start


def over_hosts(folder: Path, count: int, namespaces: bool) -> tuple[list[int], float]:
    """Return the tokens of processes that are hosts, and the time; then kill the last."""
    with processes(count, folder, namespaces) as ranks:
        results = [json.loads(one.stdout.readline()) for one in ranks]
        assert all(tokens == results[0][0] for tokens, _ in results)
        time.sleep(1)
        start = time.time()
        ranks[-1].send_signal(signal.SIGKILL)
        for rank, one in enumerate(ranks[:-1]):
            ended, why = json.loads(one.stdout.readline())
            print(f"rank {rank} has failed after {ended - start:.2f} s: {why}")
    return results[0][0], results[0][1]


@contextmanager
def processes(count: int, folder: Path | None, namespaces: bool) -> Iterator[list[Any]]:
    """Run a process of this file for each rank, perhaps in a network namespace of its own."""
    with ExitStack() as stack:
        address = f"127.0.0.1:{PORT}"
        if namespaces:
            stack.enter_context(bridged(count))
            address = f"10.77.0.1:{PORT}"
        started = []
        for rank in range(count):
            inside = ["ip", "netns", "exec", f"coreai{rank}"] if namespaces else []
            own = [sys.executable, "-m", "tools.bench.ranks", *([str(folder)] if folder else [])]
            arguments = ["--as-rank", address, str(rank), str(count)]
            started.append(
                subprocess.Popen([*inside, *own, *arguments], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(started[-1].wait)
            stack.callback(started[-1].kill)
        yield started


@contextmanager
def bridged(count: int) -> Iterator[None]:
    """Make network namespaces with addresses 10.77.0.1, 10.77.0.2, … on one bridge."""

    def ip(arguments: str) -> None:
        subprocess.run(["ip", *arguments.split()], check=True)

    with ExitStack() as stack:
        ip("link add coreai type bridge")
        stack.callback(ip, "link del coreai")
        ip("link set coreai up")
        for i in range(count):
            ip(f"netns add coreai{i}")
            stack.callback(ip, f"netns del coreai{i}")  # and its link
            ip(f"link add coreai{i} type veth peer name eth0 netns coreai{i}")
            ip(f"link set coreai{i} master coreai up")
            ip(f"-n coreai{i} addr add 10.77.0.{i + 1}/24 dev eth0")
            for link in ("eth0", "lo"):
                ip(f"-n coreai{i} link set {link} up")
        yield


def as_rank(folder: Path | None, address: str, rank: str, ranks: str) -> None:
    """Print times, or tokens and how the process has failed, as a line of JSON each."""
    with Hosts(address, int(rank), int(ranks)) as hosts:
        if folder is None:
            print(json.dumps(times(hosts, int(rank), int(ranks))), flush=True)
            return
        model = LanguageModel.open(folder / f"rank_{rank}", threads=1, group=hosts)
        start = time.perf_counter()
        tokens = np.asarray(model.generate(PROMPT, **OPTIONS)).tolist()
        print(json.dumps([tokens, time.perf_counter() - start]), flush=True)
        try:
            while True:
                model.generate(PROMPT, **OPTIONS)
        except CoreaiError as error:
            print(json.dumps([time.time(), str(error).splitlines()[0]]), flush=True)


def with_ray(folder: Path, count: int, namespaces: bool) -> tuple[list[int], float]:
    """Return the tokens of actors, one on each node of a cluster, and the time; then kill one."""
    del namespaces
    import ray
    from ray.cluster_utils import Cluster

    class Rank:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def address(self) -> str:
            return f"{ray.util.get_node_ip_address()}:{PORT}"

        def open(self, address: str) -> None:
            hosts = Hosts(address, self.rank, count)
            self.model = LanguageModel.open(folder / f"rank_{self.rank}", group=hosts, threads=1)

        def generate(self, prompt: list[int], **options: Any) -> Any:
            return self.model.generate(prompt, **options)

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(count - 1):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, logging_level="error")
    actors = [ray.remote(num_cpus=1)(Rank).remote(rank) for rank in range(count)]
    address = ray.get(actors[0].address.remote())
    ray.get([actor.open.remote(address) for actor in actors])
    start = time.perf_counter()
    results = ray.get([actor.generate.remote(PROMPT, **OPTIONS) for actor in actors])
    seconds = time.perf_counter() - start
    assert all(np.array_equal(one, results[0]) for one in results)
    long = {**OPTIONS, "max_new_tokens": 1000}
    runs = [actor.generate.remote(PROMPT, **long) for actor in actors]
    time.sleep(1)
    start_of_end = time.perf_counter()
    ray.kill(actors[-1])
    for rank, one in enumerate(runs[:-1]):
        try:
            ray.get(one)
        except ray.exceptions.RayTaskError as error:
            ended = time.perf_counter() - start_of_end
            print(f"rank {rank} has failed after {ended:.2f} s: {error.cause}")
    ray.shutdown()
    cluster.shutdown()
    return results[0].tolist(), seconds


def times(group: str | Hosts, rank: int, ranks: int) -> dict[str, list[float]]:
    """Return the median and least microseconds of each collective."""
    results = {}
    for op in ("all_reduce", "all_gather"):
        session = Session(_model(op, rank, ranks), group=group, threads=1)
        for size in BYTES:
            values, taken = np.ones((1, 1, size // 4), np.float32), []
            for _ in range(RUNS):
                start = time.perf_counter()
                session.ort.run(None, {"x": values})
                taken.append((time.perf_counter() - start) * 1e6)
            taken = taken[RUNS // 10 :]
            results[f"{op} of {size} bytes"] = [statistics.median(taken), min(taken)]
    return results


def print_times(results: dict[str, list[float]], count: int) -> None:
    """Print the times of a rank."""
    for name, (median, least) in results.items():
        print(f"{name}, {count} ranks: {median:.1f} median, {least:.1f} least µs")


def _model(op: str, rank: int, ranks: int) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["y"], domain="ai.coreai", ranks=ranks, rank=rank)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "n"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, "m"])]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.coreai", 1)]
    graph = helper.make_graph([node], op, inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


if __name__ == "__main__":
    main()
