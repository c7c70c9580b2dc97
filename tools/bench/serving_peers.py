"""Servers of other projects, which answer clients when they are asked to.

    /llama/bin/python tools/bench/serving_peers.py llama.cpp MODEL.gguf SLOTS THREADS TOKENS
    /openvino/bin/python tools/bench/serving_peers.py openvino FOLDER SLOTS THREADS TOKENS [f32]

``llama.cpp`` is llama.cpp's server, by ``xllamacpp``; ``openvino`` is the continuous batching of
OpenVINO GenAI, in the dtype that is given. A line of the standard input is a JSON list of prompts,
each a list of token ids, the seconds after which each arrives, and the number of new tokens; the
answer is a line of JSON, what `measured` returns. This file imports nothing of the project, so that
it runs in an environment that has only these libraries.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Ask = Callable[[list[int], int, Callable[[], None]], None]
"""Answers a prompt with a number of tokens, and calls a function at each of them."""


def measured(
    ask: Ask, prompts: Sequence[list[int]], arrivals: Sequence[float], count: int
) -> dict[str, Any]:
    """Return what clients see, each of them in a thread.

    Returns:
        The seconds of the wall (``wall``) and of the process (``cpu``) from the first arrival to
        the last token, ``times``: for each request, the seconds from its arrival to each token, and
        ``peak``: the most memory that was resident meanwhile, in MiB.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    times: list[list[float]] = [[] for _ in prompts]
    start = time.perf_counter()

    def client(place: int) -> None:
        # Not the time of this line: who holds the interpreter's lock keeps clients waiting.
        begin = start + arrivals[place]
        time.sleep(max(0.0, begin - time.perf_counter()))
        ask(prompts[place], count, lambda: times[place].append(time.perf_counter() - begin))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(len(prompts))]
    cpu = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, cpu = time.perf_counter() - start - min(arrivals), time.process_time() - cpu
    short = [len(one) for one in times if len(one) < count]
    assert not short, f"{len(short)} replies have fewer than {count} tokens: {min(short)}"
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
    return {"wall": wall, "cpu": cpu, "times": [one[:count] for one in times], "peak": peak}


def llama_cpp(path: str, slots: int, threads: int, tokens: int) -> Ask:
    """Start llama.cpp's server."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.n_parallel, parameters.n_ctx = path, slots, tokens
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.cont_batching, parameters.kv_unified, parameters.warmup = True, True, True
    parameters.verbosity = -1
    server = xllamacpp.Server(parameters)

    def ask(prompt: list[int], count: int, seen: Callable[[], None]) -> None:
        def piece(_: Any) -> bool:
            seen()
            return False

        asked = {"prompt": prompt, "n_predict": count, "max_tokens": count, "stream": True}
        greedy = {"temperature": 0, "top_k": 1, "ignore_eos": True, "cache_prompt": True}
        # A piece for each token, and the last one says why the reply ended.
        server.handle_completions({**asked, **greedy}, piece)

    return ask


def tell_tokens(handle: Any, seen: Callable[[], None]) -> None:
    """Call a function at each new token of a request of OpenVINO."""
    while handle.can_read():
        for output in handle.read().values():
            for _ in output.generated_ids:
                seen()


def openvino(path: str, slots: int, threads: int, tokens: int, precision: str = "") -> Ask:
    """Start OpenVINO GenAI's continuous batching, with a thread that computes its steps."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.max_num_seqs, scheduler.enable_prefix_caching = slots, True
    # Blocks of 32 tokens on a CPU; a few more for those that end within one.
    scheduler.num_kv_blocks = -(-tokens // 32) + slots
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if precision:
        settings["INFERENCE_PRECISION_HINT"] = precision
    pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", settings)
    arrived: queue.SimpleQueue[tuple[list[int], int, Callable[[], None], threading.Event]]
    arrived = queue.SimpleQueue()
    running: dict[int, tuple[Any, Callable[[], None], threading.Event]] = {}
    numbers = itertools.count()

    def add(
        prompt: list[int], count: int, seen: Callable[[], None], ended: threading.Event
    ) -> None:
        config = genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        number = next(numbers)
        handle = pipeline.add_request(number, ov.Tensor(np.array([prompt], np.int64)), config)
        running[number] = handle, seen, ended

    def steps() -> None:
        # A step keeps the interpreter's lock: between two, clients that waited for it may ask, and
        # before the first one all that ask at once.
        while True:
            if not running:
                add(*arrived.get())
                time.sleep(0.005)
            time.sleep(0)
            while not arrived.empty():
                add(*arrived.get())
            pipeline.step()
            for number, (handle, seen, ended) in list(running.items()):
                tell_tokens(handle, seen)
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    del running[number]
                    ended.set()

    threading.Thread(target=steps, daemon=True).start()

    def ask(prompt: list[int], count: int, seen: Callable[[], None]) -> None:
        ended = threading.Event()
        arrived.put((prompt, count, seen, ended))
        ended.wait()

    return ask


def main() -> None:
    """Answer the lines of the standard input."""
    kind, path, *numbers = sys.argv[1:6]
    slots, threads, tokens = map(int, numbers)
    if kind == "llama.cpp":
        ask = llama_cpp(path, slots, threads, tokens)
    else:
        ask = openvino(path, slots, threads, tokens, *sys.argv[6:])
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(measured(ask, *json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
