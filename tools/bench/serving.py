"""Many clients of one engine: tokens a second, and seconds to the first token.

    python -m tools.bench.serving --folder /tmp/serving --threads 2

A Llama of 100 million parameters (see ``generation.py``) with a paged cache answers prompts of 128
tokens with 64 new ones, for 1, 4 and 16 clients that ask at once; beside
it, ``generate`` with a growing cache answers one prompt after the other. Each round measures all of
them in turn. The prompts are random; with ``--shared``, they begin with the same 500 tokens. Times
are those of the wall, and CPU times of the whole process, which hold with ``--threads 1``.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import Engine, LanguageModel
from coreai_onnx.messages import render
from tools.bench.generation_models import SOURCE, write_source
from tools.bench.generation_worker import VOCABULARY

PROMPT, NEW, SHARED = 128, 64, 500
FILES: dict[str, dict[str, Any]] = {
    "float32": {},
    "4 bits": {"target": "kernels", "quantization": {"bits": 4}},
    "4 bits, inputs rounded": {
        "target": "kernels",
        "quantization": {"bits": 4, "activation_bits": 8},
    },
}


def main() -> int:
    """Write the files, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the files; kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--only", nargs="*", default=list(FILES))
    parser.add_argument("--shared", action="store_true", help="prompts with a common beginning")
    parser.add_argument("--no-kernels", action="store_true", help="a stock onnxruntime")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.only:
        rows += measure(name, options)
    titles = ["", "clients", "tokens/s", "per CPU second", "median", "first token", "95th"]
    print(render(titles, rows))
    return 0


def measure(name: str, options: argparse.Namespace) -> list[list[str]]:
    """Return the rows of a file."""
    how = {"kernels": False if options.no_kernels else None, "threads": options.threads}
    paged, growing = (
        LanguageModel.open(written(options.folder, name, cache), **how)
        for cache in ("paged", "growing")
    )
    tokens = max(options.clients) * (PROMPT + NEW + SHARED)
    rates: dict[Any, list[tuple[float, float]]] = {}
    waits: dict[Any, list[float]] = {}
    for seed in range(options.rounds):
        draw = np.random.default_rng(seed)
        ids = prompts(1, draw, shared=options.shared)[0]
        begin = clocks()
        growing.generate(ids, max_new_tokens=NEW, stop_ids=())
        rates.setdefault("generate", []).append(rate_since(begin, NEW))
        for clients in options.clients:
            # A new one: prompts of earlier rounds are not in its cache.
            with paged.engine(slots=max(options.clients), tokens=tokens) as engine:
                rate, first = run(engine, clients, draw, shared=options.shared)
            rates.setdefault(clients, []).append(rate)
            waits.setdefault(clients, []).extend(first)
    rows = []
    for key, found in rates.items():
        times = sorted(waits.get(key, []))
        first = ["", ""]
        if times:
            late = times[min(int(0.95 * len(times)), len(times) - 1)]
            first = [f"{statistics.median(times):.2f} s", f"{late:.2f} s"]
        walls, cpus = zip(*found, strict=True)
        speeds = (max(walls), max(cpus), statistics.median(cpus))
        rows.append([name, str(key), *(f"{speed:.1f}" for speed in speeds), *first])
    return rows


def written(folder: Path, name: str, cache: Any) -> Path:
    """Return a folder, which is written unless it is there."""
    if not (folder / SOURCE).exists():
        write_source(folder / SOURCE)
    path = folder / f"{cache} {name}"
    if not path.exists():
        export_model(folder / SOURCE, path, cache=cache, check=False, **FILES[name])
    return path


def prompts(count: int, draw: np.random.Generator, *, shared: bool) -> list[list[int]]:
    """Return random prompts."""
    common = draw.integers(3, VOCABULARY, SHARED if shared else 0).tolist()
    return [common + draw.integers(3, VOCABULARY, PROMPT).tolist() for _ in range(count)]


def clocks() -> tuple[float, float]:
    """Return the present wall and CPU times."""
    return time.perf_counter(), time.process_time()


def rate_since(begin: tuple[float, float], tokens: int) -> tuple[float, float]:
    """Return tokens for each second of wall and CPU time."""
    wall, cpu = (now - then for now, then in zip(clocks(), begin, strict=True))
    return tokens / wall, tokens / cpu


def run(
    engine: Engine, clients: int, draw: np.random.Generator, *, shared: bool
) -> tuple[tuple[float, float], list[float]]:
    """Return tokens a second of some clients, and the seconds to the first token of each reply."""
    first: list[float] = []

    def client(prompt: list[int]) -> None:
        begin = time.perf_counter()
        reply = engine.submit(prompt, max_new_tokens=NEW, stop_ids=())
        next(reply)
        first.append(time.perf_counter() - begin)
        assert len(list(reply)) == NEW - 1

    asked = prompts(clients, draw, shared=shared)
    threads = [threading.Thread(target=client, args=(prompt,)) for prompt in asked]
    begin = clocks()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rate_since(begin, clients * NEW), first


if __name__ == "__main__":
    raise SystemExit(main())
