"""What the inputs for adapters cost: left out, of rank 0, 8 and 16, beside an export without them.

    python -m tools.bench.adapters

Random Llamas on one thread, interleaved: a token after 128, and a prompt of 128, with our kernels
and in a stock onnxruntime. CPU time of the thread relative to the export without inputs, ratios of
minima and of medians: the table of docs/language_models.md.
"""

from __future__ import annotations

import statistics
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
from coreai_onnx.huggingface.generation.adapters import adapter_inputs
from coreai_onnx.runtime.sessions.session import Session

CONTEXT = 128
FOUR_BITS = {"quantization": {"bits": 4}}
MODELS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "12 x 512, float32": (12, 512, {}),
    "12 x 512, 4 bits": (12, 512, FOUR_BITS),
}
"""Blocks, width and options of the export."""
ROUNDS = {1: 120, CONTEXT: 12}
"""Calls by the number of new tokens."""


def export(blocks: int, width: int, folder: Path, **options: Any) -> list[Path]:
    """Write a Llama without inputs for adapters, and with them; return the files."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=width, intermediate_size=width * 11 // 4,
        num_hidden_layers=blocks, num_attention_heads=width // 64,
        num_key_value_heads=width // 128, max_position_embeddings=1024,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    for lora in (False, True):
        export_model(model, folder / str(lora), check=False, lora=lora, **options)
    return [folder / str(lora) / "model.onnx" for lora in (False, True)]


def call(opened: Session, tokens: int, rank: int) -> Callable[[], None]:
    """Return a call of a session with ``tokens`` new tokens and adapters of a rank."""
    past = CONTEXT if tokens == 1 else 0
    feeds = {
        "input_ids": np.ones((1, tokens), np.int64),
        "attention_mask": np.ones((1, past + tokens), np.int64),
        "position_ids": np.arange(past, past + tokens)[None],
    }
    sizes = {"batch_size": 1}
    for info in opened.state_inputs:
        shape = [sizes.get(dim, past) if isinstance(dim, str) else dim for dim in info.dims]
        feeds[info.name] = np.zeros(shape, np.float32)
    generator = np.random.default_rng(0)
    for info in adapter_inputs(opened).values() if rank else ():
        shape = [1, *(rank if isinstance(dim, str) else dim for dim in info.dims[1:])]
        feeds[info.name] = generator.normal(0, 0.02, shape).astype(np.float32)
    binding = opened.ort.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    for output in opened.ort.get_outputs():
        binding.bind_output(output.name)
    return lambda: opened.ort.run_with_iobinding(binding)


def measure(files: list[Path], tokens: int, *, kernels: bool) -> str:
    """Return a row: the time without inputs, and the ratios of the columns of `main`."""
    plain, adapted = (session(file, threads=1, kernels=kernels) for file in files)
    without = session(files[1], threads=1, kernels=kernels, adapters=False)
    calls = [call(one, tokens, 0) for one in (plain, without)]
    calls += [call(adapted, tokens, rank) for rank in (0, 8, 16)]
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS[tokens]):
        for run, taken in zip(calls, times, strict=True):
            start = time.thread_time()
            run()
            taken.append(time.thread_time() - start)
    least, medians = [min(taken) for taken in times], [statistics.median(taken) for taken in times]
    ratios = (
        f"{least[i] / least[0]:.3f}, {medians[i] / medians[0]:.3f}" for i in range(1, len(times))
    )
    return f"{least[0] * 1e3:.2f} ms | {' | '.join(ratios)}"


def main() -> None:
    """Print the table."""
    print("| blocks × width | without | adapters=False | rank 0 | rank 8 | rank 16 |")
    print("|---|---|---|---|---|---|")
    for name, (blocks, width, options) in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            files = export(blocks, width, Path(folder), **options)
            for kernels in (True, False):
                runtime = "kernels" if kernels else "stock"
                for tokens in ROUNDS:
                    kind = "decode" if tokens == 1 else "prefill"
                    row = measure(files, tokens, kernels=kernels)
                    print(f"| {name}, {runtime}, {kind} | {row} |", flush=True)


if __name__ == "__main__":
    main()
