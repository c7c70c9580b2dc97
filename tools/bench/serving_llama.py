"""llama.cpp's server, which answers clients that ask at once when it is asked to.

    /llama/bin/python tools/bench/serving_llama.py MODEL.gguf SLOTS THREADS TOKENS

A line of the standard input is a JSON list of prompts, each a list of token ids, and the number of
new tokens; the answer is a line of JSON: tokens for each second of wall and CPU time of the
process, and the seconds to the first token of each reply. This file imports nothing of the project,
so that it runs in an environment that has only ``xllamacpp``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import xllamacpp


def main() -> None:
    """Answer the lines of the standard input."""
    path, slots, threads, tokens = sys.argv[1], *map(int, sys.argv[2:5])
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.n_parallel, parameters.n_ctx = path, slots, tokens
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.cont_batching, parameters.kv_unified, parameters.warmup = True, True, True
    parameters.verbosity = -1
    server = xllamacpp.Server(parameters)
    print("ready", flush=True)
    for line in sys.stdin:
        prompts, count = json.loads(line)
        print(json.dumps(measured(server, prompts, count)), flush=True)


def measured(server: Any, prompts: list[list[int]], count: int) -> dict[str, Any]:
    """Return the rates and waits of clients."""
    first: list[float] = []

    def client(prompt: list[int]) -> None:
        begin = time.perf_counter()
        seen: list[float] = []

        def piece(_: Any) -> bool:
            seen.append(time.perf_counter() - begin)
            return False

        asked = {"prompt": prompt, "n_predict": count, "max_tokens": count, "stream": True}
        greedy = {"temperature": 0, "top_k": 1, "ignore_eos": True, "cache_prompt": True}
        server.handle_completions({**asked, **greedy}, piece)
        # A piece for each token, and the last one says why the reply ended.
        assert len(seen) >= count, f"only {len(seen)} tokens"
        first.append(seen[0])

    threads = [threading.Thread(target=client, args=(prompt,)) for prompt in prompts]
    begin = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
    total = len(prompts) * count
    return {"wall": total / wall, "cpu": total / cpu, "first": first}


if __name__ == "__main__":
    main()
