"""MiniLM quantized by OrtQuantizer: size, cosine with float32, and milliseconds.

python tools/bench/pt2e.py [--rounds 10]
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
import coreai_onnx
from coreai_onnx.messages import render, size_text
from coreai_onnx.quantization import OrtQuantizer
from coreai_onnx.runtime.profile.timing import time_interleaved
from tools.quickstart import MAX_POSITIONS, SENTENCES, Loaded, load

SHAPES = ((1, 16), (6, 16), (4, 128))


def quantized(loaded: Loaded, quantizer: OrtQuantizer, dims: Any) -> Any:
    """Return the encoder, calibrated with the sentences in three lengths."""
    inputs = loaded.inputs(SENTENCES)
    exported = torch.export.export(loaded.model, inputs, dynamic_shapes=dims)
    prepared = prepare_pt2e(exported.module(), quantizer)
    with torch.no_grad():
        prepared(*inputs)
        for count in (4, 6):
            prepared(*loaded.inputs(SENTENCES[:count], 128))
    return convert_pt2e(prepared)


def main() -> None:
    """Convert, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")
    loaded = load()
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=MAX_POSITIONS)}
    dims = {"input_ids": axes, "attention_mask": axes}
    models = {
        "float32": loaded.model,
        "static": quantized(loaded, OrtQuantizer(), dims),
        "dynamic": quantized(loaded, OrtQuantizer(dynamic=True), dims),
        "static, 8 bits": quantized(loaded, OrtQuantizer(reduce_range=False), dims),
        "dynamic, 8 bits": quantized(loaded, OrtQuantizer(dynamic=True, reduce_range=False), dims),
    }
    inputs = loaded.inputs(SENTENCES)
    sessions, rows = {}, []
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        wanted = loaded.model(*inputs)
        for name, model in models.items():
            file = Path(folder) / f"{name}.onnx"
            coreai_onnx.convert(model, inputs, dynamic_shapes=dims).save(file)
            sessions[name] = coreai_onnx.session(file, kernels=False, threads=1)
            got = torch.from_numpy(sessions[name].run(*inputs)[0])
            cosine = float(torch.cosine_similarity(got, wanted).min())
            rows.append((name, size_text(file.stat().st_size), f"{cosine:.4f}"))
    print(render(("model", "size", "least cosine"), rows))
    rows = []
    for batch, length in SHAPES:
        given = loaded.inputs(SENTENCES[:batch], length)
        calls = {name: functools.partial(s.run, *given) for name, s in sessions.items()}
        timings = time_interleaved(calls, repeats=rounds)
        rows.append((f"{batch}, {length}", *(round(t.median * 1e3, 1) for t in timings.rows)))
    print(render(("batch, tokens", *sessions), rows))


if __name__ == "__main__":
    main()
