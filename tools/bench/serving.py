"""Many clients of one engine: tokens a second, and seconds to the first token.

    python -m tools.bench.serving --folder /tmp/serving --threads 2

A Llama of 100 million parameters (see ``generation.py``) with a paged cache answers prompts of 128
tokens with 64 new ones, for 1, 4 and 16 clients that ask at once; beside
it, ``generate`` with a growing cache answers one prompt after the other. Each round measures all of
them in turn. The prompts are random; with ``--shared``, they begin with the same 500 tokens. Times
are those of the wall, and CPU times of the whole process, which hold with ``--threads 1``.

With ``--gguf FILE``, the model is that of the file, beside it llama.cpp's server with the file, in
the environment ``--llama PYTHON`` with ``xllamacpp``, in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
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
GGUF_FILES: dict[str, dict[str, Any]] = {
    "codes of the file": {"target": "kernels"},
    "codes of the file, inputs rounded": {
        "target": "kernels",
        "quantization": {"activation_bits": 8},
    },
}
"""llama.cpp rounds the inputs of products of few bits."""


def main() -> int:
    """Write the files, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the files; kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--only", nargs="*", default=list(FILES))
    parser.add_argument("--gguf", type=Path, help="measure this model instead")
    parser.add_argument("--llama", type=Path, help="the python of llama.cpp's environment")
    parser.add_argument("--shared", action="store_true", help="prompts with a common beginning")
    parser.add_argument("--no-kernels", action="store_true", help="a stock onnxruntime")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in GGUF_FILES if options.gguf else options.only:
        rows += measure(name, options)
    titles = ["", "clients", "tokens/s", "per CPU second", "median", "first token", "95th"]
    print(render(titles, rows))
    return 0


def measure(name: str, options: argparse.Namespace) -> list[list[str]]:
    """Return the rows of a file."""
    how = {"kernels": False if options.no_kernels else None, "threads": options.threads}
    growing = None
    if options.gguf is None:
        growing = LanguageModel.open(written(options.folder, name, "growing"), **how)
    paged = LanguageModel.open(written(options.folder, name, "paged", options.gguf), **how)
    slots = max(options.clients)
    tokens = slots * (PROMPT + NEW + SHARED)
    llama = Llama(options, slots, tokens) if options.gguf and options.llama else None
    rates: dict[Any, list[tuple[float, float]]] = {}
    waits: dict[Any, list[float]] = {}
    for seed in range(options.rounds):
        draw = np.random.default_rng(seed)
        ids = prompts(1, draw, shared=options.shared)[0]
        if growing is not None:
            begin = clocks()
            growing.generate(ids, max_new_tokens=NEW, stop_ids=())
            rates.setdefault("generate", []).append(rate_since(begin, NEW))
        for clients in options.clients:
            asked = prompts(clients, draw, shared=options.shared)
            # A new one: prompts of earlier rounds are not in its cache.
            with paged.engine(slots=slots, tokens=tokens) as engine:
                results = {clients: run(engine, asked)}
            if llama is not None:
                results[f"llama.cpp, {clients}"] = llama.run(asked)
            for key, (rate, first) in results.items():
                rates.setdefault(key, []).append(rate)
                waits.setdefault(key, []).extend(first)
    return [row(name, str(key), found, waits.get(key, [])) for key, found in rates.items()]


def row(name: str, key: str, found: list[tuple[float, float]], waits: list[float]) -> list[str]:
    """Return a row of the table."""
    times = sorted(waits)
    first = ["", ""]
    if times:
        late = times[min(int(0.95 * len(times)), len(times) - 1)]
        first = [f"{statistics.median(times):.2f} s", f"{late:.2f} s"]
    walls, cpus = zip(*found, strict=True)
    speeds = (max(walls), max(cpus), statistics.median(cpus))
    return [name, key, *(f"{speed:.1f}" for speed in speeds), *first]


class Llama:
    """llama.cpp's server in a process of its own; see ``serving_llama.py``."""

    def __init__(self, options: argparse.Namespace, slots: int, tokens: int) -> None:
        """Start it, and wait until it has read the model."""
        worker = Path(__file__).with_name("serving_llama.py")
        numbers = map(str, (slots, options.threads, tokens))
        self._process = subprocess.Popen(
            [options.llama, worker, options.gguf, *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._read() == "ready\n"

    def run(self, asked: list[list[int]]) -> tuple[tuple[float, float], list[float]]:
        """Return what `run` does."""
        assert self._process.stdin is not None
        print(json.dumps([asked, NEW]), file=self._process.stdin, flush=True)
        answer = json.loads(self._read())
        return (answer["wall"], answer["cpu"]), answer["first"]

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def written(folder: Path, name: str, cache: Any, gguf: Path | None = None) -> Path:
    """Return a folder, which is written unless it is there."""
    if gguf is None and not (folder / SOURCE).exists():
        write_source(folder / SOURCE)
    path = folder / f"{cache} {name}"
    if not path.exists():
        settings = GGUF_FILES[name] if gguf else FILES[name]
        export_model(gguf or folder / SOURCE, path, cache=cache, check=False, **settings)
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


def run(engine: Engine, asked: list[list[int]]) -> tuple[tuple[float, float], list[float]]:
    """Return tokens a second of some clients, and the seconds to the first token of each reply."""
    first: list[float] = []

    def client(prompt: list[int]) -> None:
        begin = time.perf_counter()
        reply = engine.submit(prompt, max_new_tokens=NEW, stop_ids=())
        next(reply)
        first.append(time.perf_counter() - begin)
        assert len(list(reply)) == NEW - 1

    threads = [threading.Thread(target=client, args=(prompt,)) for prompt in asked]
    begin = clocks()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rate_since(begin, len(asked) * NEW), first


if __name__ == "__main__":
    raise SystemExit(main())
