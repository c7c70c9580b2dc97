"""Tokens of ranks beside those of the whole model, and the time of a collective.

python -m tools.bench.ranks my_llama --ranks 2 4
python -m tools.bench.ranks gemma-3-270m-q4_k_m.gguf --ranks 2 4
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from transformers import AutoModelForCausalLM

from coreai_onnx.huggingface.generation.serving.ranks import Ranks
from coreai_onnx.huggingface.opened import export_ranks
from coreai_onnx.runtime.sessions.session import Session

PROMPT, NEW, RUNS = [2, 651, 6037, 576, 6081, 603], 32, 400
BYTES = (2560, 16_384, 1 << 20)
"""Sizes of a part: of a token of Gemma 3 270M, of one of Llama 3 8B, of a prompt."""


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    where = "a folder of transformers, or a GGUF file (needs accelerate)"
    parser.add_argument("source", type=Path, nargs="?", help=where)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    arguments = parser.parse_args()
    for count in arguments.ranks:
        for op in ("all_reduce", "all_gather"):
            for size in BYTES:
                print(f"{op} of {size} bytes, {count} ranks: {microseconds(op, size, count)} µs")
    if arguments.source is None:
        return
    path, gguf = arguments.source, {}
    if path.is_file():
        path, gguf = path.parent, {"gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **gguf).eval()
    whole = sum(weight.numel() for weight in model.parameters())
    ids = torch.tensor([PROMPT])
    expected = model.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    for count in arguments.ranks:
        with tempfile.TemporaryDirectory() as place:
            folder = export_ranks(model, Path(place) / "ranks", count)
            stored = onnx.load(folder / "rank_0" / "model.onnx", load_external_data=False)
            part = sum(int(np.prod(one.dims)) for one in stored.graph.initializer)
            with Ranks(folder) as ranks:
                options: dict[str, Any] = {"max_new_tokens": NEW, "stop_ids": ()}
                start = time.perf_counter()
                tokens = ranks.generate(PROMPT, **options)
                seconds = time.perf_counter() - start
        same = tokens.tolist() == expected[0].tolist()  # type: ignore[union-attr]
        share = f"{part / whole:.3f} of the weights"
        print(f"{count} ranks: same tokens {same}, {share}, {seconds:.1f} s for {NEW} tokens")


def microseconds(op: str, size: int, count: int) -> str:
    """Return the median and least time of a collective between threads."""
    group, values = uuid.uuid4().hex, np.ones((1, 1, size // 4), np.float32)
    sessions = [Session(_model(op, rank, count), group=group, threads=1) for rank in range(count)]

    def run(session: Session) -> list[float]:
        times = []
        for _ in range(RUNS):
            start = time.perf_counter()
            session.ort.run(None, {"x": values})
            times.append((time.perf_counter() - start) * 1e6)
        return times[RUNS // 10 :]

    with ThreadPoolExecutor(count) as threads:
        times = next(iter(threads.map(run, sessions)))
    return f"{statistics.median(times):.1f} median, {min(times):.1f} least"


def _model(op: str, rank: int, ranks: int) -> onnx.ModelProto:
    node = helper.make_node(op, ["x"], ["y"], domain="ai.coreai", ranks=ranks, rank=rank)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "n"])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, "m"])]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.coreai", 1)]
    graph = helper.make_graph([node], op, inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


if __name__ == "__main__":
    main()
