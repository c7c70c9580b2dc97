"""A token of a decoder with a static cache: ``Session.run`` and buffers bound by hand.

    python -m tools.bench.static_cache
    python -m tools.bench.static_cache --tokens 400 --profile

12 layers of Llama, hidden size 512, one thread. Both use one onnxruntime session in turn. The time
is that of the thread, and the minimum of each position: other work on the machine counts less.
``--profile`` prints the functions of Python that a token takes its time in.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
import transformers

from coreai_onnx import session
from coreai_onnx.huggingface import export_model
from coreai_onnx.model.interface import CAPACITY
from coreai_onnx.runtime.sessions.session import Session

LENGTH = 256
SIZES = {
    "vocab_size": 2000, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 12,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 512,
}  # fmt: skip


def feeds(position: int) -> dict[str, Any]:
    """Return the inputs for the token at a position."""
    mask = np.ones((1, position + 1), np.int64)
    ids, places = np.array([[7]]), np.array([[position]])
    return {"input_ids": ids, "attention_mask": mask, "position_ids": places}


def by_hand(opened: Session) -> Callable[[int], Any]:
    """Return a function that runs the onnxruntime session of a session on buffers of its own."""
    states = opened._signature.states
    empty = _empty(opened)
    buffers = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in empty.items()}
    size = opened.outputs[0].dims[-1]
    logits = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1, size), np.float32))

    def run(position: int) -> Any:
        binding = opened.ort.io_binding()
        for name, array in feeds(position).items():
            binding.bind_cpu_input(name, array)
        for state in states:
            binding.bind_ortvalue_input(state.input, buffers[state.input])
            binding.bind_ortvalue_output(state.output, buffers[state.input])
        binding.bind_ortvalue_output("logits", logits)
        opened.ort.run_with_iobinding(binding)
        return logits.numpy()

    return run


def _empty(opened: Session) -> dict[str, Any]:
    sizes = {CAPACITY: LENGTH}
    return {
        info.name: np.zeros(
            [d if isinstance(d, int) else sizes.get(str(d), 1) for d in info.dims], np.float32
        )
        for info in opened.state_inputs
    }


def main() -> int:
    """Measure both, and print the times in ms."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    with tempfile.TemporaryDirectory() as folder:
        export_model(model, Path(folder, "model"), cache="static", check=False)
        opened = session(Path(folder, "model", "model.onnx"), threads=1)
    hand, stream = by_hand(opened), opened.stream()
    stream.run(**feeds(0), **_empty(opened))
    hand(0)
    runs: list[Callable[[int], Any]] = [lambda p: stream.run(**feeds(p))["logits"], hand]
    times = np.full((2, options.rounds, options.tokens), np.inf)
    for turn, position in np.ndindex(options.rounds, options.tokens):
        results = []
        for which in (0, 1) if position % 2 else (1, 0):
            start = time.thread_time()
            results.append(runs[which](position))
            times[which, turn, position] = 1e3 * (time.thread_time() - start)
        np.testing.assert_array_equal(*results)
    best = times.min(axis=1)
    for name, row in zip(("Session.run", "by hand"), best, strict=True):
        print(f"{name:12} minimum {row.min():.3f} ms, median of positions {np.median(row):.3f} ms")
    print(f"difference   median of positions {np.median(best[0] - best[1]):.3f} ms")
    print(f"             median of all pairs {np.median(times[0] - times[1]):.3f} ms")
    if options.profile:
        with cProfile.Profile() as profile:
            for position in range(options.tokens):
                runs[0](position)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    return 0


if __name__ == "__main__":
    sys.exit(main())
