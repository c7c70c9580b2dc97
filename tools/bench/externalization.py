"""Conversion time and file size of decoders whose layers stay whole.

    python -m tools.bench.externalization --layers 2 16 60
    python -m tools.bench.externalization --layers 32 --compare-files

Times are process CPU seconds from the module to the optimized program, export included. A warm-up
conversion comes first. With ``--compare-files`` the files are compared with those that
``torch.onnx.export`` writes: bytes without the weights, nodes, functions.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

import coreai_onnx
from coreai_onnx import ExternalizeSpec
from coreai_onnx.messages import render, size_text
from tools.bench.conversion import Logits

WAYS: dict[str, Any] = {
    "nothing externalized": None,
    "layers": [LlamaDecoderLayer],
    "layers, norms inside": [LlamaDecoderLayer, ExternalizeSpec(LlamaRMSNorm, "rms_norm")],
    "norms": [ExternalizeSpec(LlamaRMSNorm, "rms_norm")],
    'layers, "auto" inside': ["auto", LlamaDecoderLayer],
}


def decoder(layers: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """A Llama with narrow layers: what is measured grows with the graph, not with the weights."""
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    return Logits(transformers.LlamaForCausalLM(config).eval()), torch.randint(0, 1000, (1, 16))


def converted(layers: int, targets: Any) -> tuple[coreai_onnx.OnnxProgram, float]:
    """Return the program and the CPU seconds it took."""
    model, ids = decoder(layers)
    dims = {"input_ids": {1: torch.export.Dim("seq", min=2, max=512)}}
    started = time.process_time()
    program = coreai_onnx.convert(model, (ids,), dynamic_shapes=dims, externalize_modules=targets)
    return program, time.process_time() - started


def times(layers: list[int]) -> str:
    """Return a table of conversion times."""
    for targets in WAYS.values():
        converted(1, targets)
    rows = []
    for name, targets in WAYS.items():
        seconds = [converted(n, targets)[1] for n in layers]
        ratio = f"{seconds[-1] / seconds[0]:.2f}"
        rows.append((name, *(f"{s:.2f}" for s in seconds), ratio))
    header = ("externalized", *(f"{n} layers, s" for n in layers), "last / first")
    return render(header, rows)


def files(layers: int) -> str:
    """Return a table of what is in the files."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("nothing externalized", "layers", 'layers, "auto" inside'):
            program, seconds = converted(layers, WAYS[name])
            path = Path(folder) / "ours.onnx"
            program.save(path, external_data=True)
            rows.append((f"coreai_onnx, {name}", *_contents(path), f"{seconds:.1f}"))
            print(f"{name}: done", file=sys.stderr)
        model, ids = decoder(layers)
        started = time.process_time()
        exported = torch.onnx.export(
            model,
            (ids,),
            dynamo=True,
            verbose=False,
            dynamic_shapes={"input_ids": {1: torch.export.Dim("seq", min=2, max=512)}},
        )
        assert exported is not None
        seconds = time.process_time() - started
        path = Path(folder) / "theirs.onnx"
        exported.save(str(path), external_data=True)
        rows.append(("torch.onnx.export", *_contents(path), f"{seconds:.1f}"))
    header = ("", "bytes without weights", "nodes in the graph", "functions", "nodes in all", "s")
    return render(header, rows)


def _contents(path: Path) -> tuple[str, ...]:
    proto = onnx.load(path, load_external_data=False)
    inside = sum(len(f.node) for f in proto.functions)
    nodes = len(proto.graph.node)
    size = size_text(path.stat().st_size)
    return size, str(nodes), str(len(proto.functions)), str(nodes + inside)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 16, 60])
    parser.add_argument("--compare-files", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.compare_files:
        print(files(options.layers[0]))
    else:
        print(times(options.layers))


if __name__ == "__main__":
    main()
