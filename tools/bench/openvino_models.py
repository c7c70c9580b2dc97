"""Our kernels, the function bodies and OpenVINO on one file: encoders, and a Llama.

    tools/make_provider_environment openvino
    build/openvino-env/bin/python -m tools.bench.openvino_models --record

Each file runs in three sessions of one process: onnxruntime's CPU provider with our kernels,
without them, and OpenVINO's provider. All have one thread, compute in float32 and run in turns,
and the processor time of all threads is measured, so that other processes matter little.
``--record`` writes tools/providers/openvino.json for docs/models_on_providers.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
import transformers

import coreai_onnx
from coreai_onnx.huggingface import export_model
from tools.bench.machine import processor

PROVIDER = "OpenVINOExecutionProvider"
RECORD = Path(__file__).resolve().parents[1] / "providers" / "openvino.json"
COMMAND = """\
$ tools/make_provider_environment openvino
$ build/openvino-env/bin/python -m tools.bench.openvino_models --record"""
_SIZES = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}
OPSET = 18
"""OpenVINO 2025.4 claims Attention of opset 23, and then fails to load it."""
_TOKENS = 128
Arrays = dict[str, np.ndarray]


def cases(folder: Path) -> Iterator[tuple[str, Path, Arrays]]:
    """Write the files; yields a name, the file, and its inputs."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True, norm_first=True).eval()
    dims = {"src": {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq")}}
    x = torch.randn(2, 10, 64)
    file = folder / "encoder.onnx"
    coreai_onnx.convert(layer, (x,), dynamic_shapes=dims, opset_version=OPSET).save(file)
    yield "README's encoder, 2 × 10", file, {"src": x.numpy()}

    bert = transformers.BertConfig(**_SIZES, vocab_size=1000, num_attention_heads=12)
    export_model(transformers.BertModel(bert).eval(), folder / "bert", opset_version=OPSET)
    ids = torch.randint(4, 1000, (1, _TOKENS)).numpy()
    given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    yield (
        f"like MiniLM: BERT, 6 layers of 384, {_TOKENS} tokens",
        folder / "bert" / "model.onnx",
        {**given, "token_type_ids": np.zeros_like(ids)},
    )

    heads = {"num_attention_heads": 6, "num_key_value_heads": 2}
    llama = transformers.LlamaConfig(**_SIZES, **heads, vocab_size=1000)
    export_model(transformers.LlamaForCausalLM(llama).eval(), folder / "llama", opset_version=OPSET)
    file = folder / "llama" / "model.onnx"
    name = "Llama, 6 layers of 384"
    yield f"{name}, prefill of {_TOKENS}", file, _step(file, ids, 0)
    yield f"{name}, one token after {_TOKENS}", file, _step(file, ids[:, :1], _TOKENS)


def _step(file: Path, ids: np.ndarray, past: int) -> Arrays:
    """Return the inputs of a step of a decoder after ``past`` tokens."""
    length = ids.shape[1]
    given = {
        "input_ids": ids,
        "attention_mask": np.ones((1, past + length), np.int64),
        "position_ids": np.arange(past, past + length)[None],
    }
    random = np.random.default_rng(0)
    for one in coreai_onnx.session(file, kernels=False).ort.get_inputs():
        if one.name not in given:
            _, heads, _, width = one.shape
            given[one.name] = random.standard_normal((1, heads, past, width), np.float32)
    return given


def sessions(file: Path) -> dict[str, ort.InferenceSession]:
    """Open a file in each way, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # of what OpenVINO leaves to the CPU provider
    settings = {"device_type": "CPU", "num_of_threads": "1", "precision": "FP32"}
    return {
        "kernels": coreai_onnx.session(file, kernels=True, threads=1).ort,
        "body": coreai_onnx.session(file, kernels=False, threads=1).ort,
        "openvino": ort.InferenceSession(file, options, [(PROVIDER, settings)]),
    }


def measured(name: str, file: Path, given: Arrays, rounds: int) -> dict[str, Any]:
    """Return times in milliseconds, and the largest difference of OpenVINO from the bodies."""
    opened = sessions(file)
    results = {way: session.run(None, given) for way, session in opened.items()}
    pairs = zip(results["body"], results["openvino"], strict=True)
    error = max(float(np.abs(a - b).max()) for a, b in pairs)
    calls = {way: _call(session, given) for way, session in opened.items()}
    times = processor_times(calls, rounds)
    summary = {
        way: {"min": min(found) * 1e3, "median": statistics.median(found) * 1e3}
        for way, found in times.items()
    }
    return {"model": name, "error": error, **summary}


def _call(session: ort.InferenceSession, given: Arrays) -> Callable[[], object]:
    return lambda: session.run(None, given)


def processor_times(
    calls: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, list[float]]:
    """Return the processor time of each round of each call, in seconds; they run in turns."""
    # The clock of the process has steps of a microsecond, and the shortest call takes 100.
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(rounds + 3):
        for name in list(calls)[:: 1 if index % 2 else -1]:
            start = time.process_time()
            calls[name]()
            if index >= 3:  # the first warm up
                times[name].append(time.process_time() - start)
    return times


def main() -> None:
    """Measure, print, and write the results if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="runs of each session")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.name}")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder)):
            rows.append(measured(*case, options.rounds))
            print(json.dumps(rows[-1]), flush=True)
    if options.record:
        found = {"machine": f"{processor()}.", "command": COMMAND, "rows": rows}
        RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
