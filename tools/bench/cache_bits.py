"""Caches of 8 and 4 bits beside float32: perplexity, memory, and the time of a token.

    python -m tools.bench.cache_bits --source gemma.gguf --folder /tmp/cache_bits --tokens 4096

Exports the model once for each cache, and prints the perplexity of a text, the memory of the cache,
and the CPU time of the process for one token after ``--tokens`` cached ones: numbers that are
random, in the same shapes. Rounds measure all caches in turn. ``--no-kernels`` runs the bodies.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import coreai_onnx
from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.huggingface.generation.decoding import empty
from coreai_onnx.messages import render
from tools.bench.gguf_models import TEXT

CACHES: dict[str, int | None] = {"float32": None, "8 bits": 8, "4 bits": 4}


def main() -> int:
    """Export the model, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the exports; kept")
    parser.add_argument("--text", type=Path, help="(default: that of gguf_models.py)")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cache", default="growing", choices=["growing", "static"])
    parser.add_argument("--target", default="kernels", choices=["kernels", "onnxruntime"])
    parser.add_argument("--no-kernels", action="store_true")
    options = parser.parse_args()
    text = TEXT if options.text is None else options.text.read_text()
    kernels = False if options.no_kernels else None
    models = {}
    for name, bits in CACHES.items():
        folder = options.folder / options.cache / name.replace(" ", "_")
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            how: dict[str, Any] = {"cache": options.cache, "target": options.target}
            export_model(options.source, folder, cache_bits=bits, check=False, **how)
        models[name] = LanguageModel.open(folder, kernels=kernels, threads=1)
    perplexities = {name: coreai_onnx.perplexity(model, text) for name, model in models.items()}
    caches = {name: _cache(model, options.tokens) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(options.rounds + 1):
        for name, model in models.items():
            times[name].append(_token(model, caches[name], options.tokens))
    least = {name: min(values[1:]) for name, values in times.items()}
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    header = ["cache", "perplexity", "MiB", "ms a token, CPU (min / median)", "times faster"]
    rows = []
    for name, cache in caches.items():
        size = sum(x.nbytes for x in cache.values()) / 2**20
        ratios = (values["float32"] / values[name] for values in (least, median))
        spent = f"{least[name] * 1e3:.1f} / {median[name] * 1e3:.1f}"
        shown = " / ".join(f"{ratio:.2f}" for ratio in ratios)
        rows.append([name, f"{perplexities[name]:.3f}", f"{size:.1f}", spent, shown])
    print(render(header, rows))
    return 0


def _cache(model: LanguageModel, tokens: int) -> dict[str, Any]:
    """Return random keys and values of a number of tokens, as the model stores them."""
    random = np.random.default_rng(0)
    session = model.session
    dims = {session.inputs[0].dims[0]: 1, "past_sequence_length": tokens, "max_length": tokens + 1}
    cache = {info.name: empty(info, dims) for info in session.state_inputs}
    for x in cache.values():
        if x.dtype == np.uint8:
            x[:] = random.integers(0, 256, x.shape)
        else:
            x[:] = random.standard_normal(x.shape) * (0.01 if x.shape[-1] == 1 else 1)
    return cache


def _token(model: LanguageModel, cache: dict[str, Any], tokens: int) -> float:
    """Return the CPU seconds of the process for one token."""
    stream = model.session.stream()
    stream.state = dict(cache)
    feeds = {
        "input_ids": np.array([[7]]),
        "attention_mask": np.ones((1, tokens + 1), np.int64),
        "position_ids": np.array([[tokens]]),
        "num_logits_to_keep": np.array(1),
    }
    infos = (*model.session.inputs, *model.session.optional_inputs)
    given = {info.name: feeds[info.name] for info in infos}
    start = time.process_time()
    stream.run(**given)
    spent = time.process_time() - start
    stream.close()
    return spent


if __name__ == "__main__":
    raise SystemExit(main())
