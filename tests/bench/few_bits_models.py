"""Llama-like models with 4-bit weights in groups of 32: prefill of 128 tokens, and a decoded token.

    python -m tests.bench.few_bits_models --folder /tmp/few_bits
    python -m tests.bench.few_bits_models --folder /tmp/few_bits --size 600m --threads 2

Random weights of 12 layers are rounded to nearest. The same program in float32, for our kernels
with activations as they are and rounded to 8 bits, and as onnxruntime's MatMulNBits of both kinds;
each is asked for a step in turn. Milliseconds are minima. The files stay in the folder.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
import transformers

import coreai_onnx
from coreai_onnx import OnnxProgram
from coreai_onnx.runtime import ops_library_path
from coreai_onnx.table import render

SIZES: Mapping[str, Mapping[str, int]] = {
    "100m": {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12,
             "num_key_value_heads": 4},
    "600m": {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
             "num_key_value_heads": 8},
}  # fmt: skip
STEPS = {"prefill": (128, 0), "decode": (1, 512)}
"""New tokens and cached ones."""
KINDS = ("float32", "kernels plain", "kernels rounded", "MatMulNBits 0", "MatMulNBits 4")
VOCABULARY = 16_000


def write(size: str, folder: Path) -> dict[str, Path]:
    """Write the files that are missing and return them by kind."""
    files = {kind: folder / f"{size} {kind}".replace(" ", "_") / "model.onnx" for kind in KINDS}
    if not files["float32"].exists():
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY, num_hidden_layers=12, head_dim=64, **SIZES[size]
        )
        model = transformers.LlamaForCausalLM(config).eval()
        coreai_onnx.export_model(model, files["float32"].parent, check=False)
    for kind in KINDS[1:]:
        if files[kind].exists():
            continue
        program = OnnxProgram.load(files["float32"])
        program.quantize(4, 32, method="rtn", symmetric=True)
        if kind in ("kernels rounded", "MatMulNBits 4"):
            round_activations(program.model)
        program.optimize(target="kernels" if kind.startswith("kernels") else "contrib")
        files[kind].parent.mkdir(parents=True, exist_ok=True)
        program.save(files[kind])
    return files


def round_activations(model: ir.Model) -> None:
    """Set the products of a model to 8-bit activations; only a kernel runs them afterwards."""
    for graph in (model.graph, *model.functions.values()):
        for node in graph:
            if node.op_type.startswith("linear_nbits"):
                node.attributes["activation_bits"] = ir.AttrInt64("activation_bits", 8)


def steps(path: Path, threads: int, *, kernels: bool) -> dict[str, Callable[[], object]]:
    """Open a file and return its steps, with memory bound to inputs and outputs."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if kernels:
        options.register_custom_ops_library(str(ops_library_path()))
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return {name: _bound(session, *counts) for name, counts in STEPS.items()}


def _bound(session: ort.InferenceSession, count: int, past: int) -> Callable[[], object]:
    binding, random = session.io_binding(), np.random.default_rng(0)
    given = {
        "input_ids": random.integers(0, VOCABULARY, (1, count)),
        "attention_mask": np.ones((1, past + count), np.int64),
        "position_ids": np.arange(past, past + count)[None],
    }
    for value in session.get_inputs():
        if value.name.startswith("past_key_values."):
            shape = (1, value.shape[1], past, value.shape[3])
            given[value.name] = random.standard_normal(shape).astype(np.float32)
        binding.bind_ortvalue_input(value.name, ort.OrtValue.ortvalue_from_numpy(given[value.name]))
    names = [value.name for value in session.get_outputs()]
    for name in names:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    for name, value in zip(names, binding.get_outputs(), strict=True):
        binding.bind_ortvalue_output(name, value)
    return lambda: session.run_with_iobinding(binding)


def main() -> int:
    """Write, measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="100m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    files = write(options.size, options.folder)
    runs = {k: steps(p, options.threads, kernels="MatMul" not in k) for k, p in files.items()}
    least = {(kind, step): float("inf") for kind in runs for step in STEPS}
    for _ in range(options.rounds):
        for place, before in least.items():
            kind, step = place
            begin = time.perf_counter()
            runs[kind][step]()
            least[place] = min(before, (time.perf_counter() - begin) * 1e3)
    rows = []
    for kind, path in files.items():
        megabytes = sum(file.stat().st_size for file in path.parent.iterdir()) / 1e6
        cells = (
            f"{least[kind, s]:.1f} ({least['float32', s] / least[kind, s]:.2f})" for s in STEPS
        )
        rows.append((kind, f"{megabytes:.0f} MB", *cells))
    print(render(("weights", "file", *STEPS), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
