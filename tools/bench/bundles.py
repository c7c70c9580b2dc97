"""Memory and time of two entrypoints with the same weights, by how their sessions hold them.

    python -m tools.bench.bundles

A decoder with 33 million parameters in float32 is saved as the entrypoints prefill and decode. Each
way to open both is a process of its own. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from coreai_onnx.messages import render
from coreai_onnx.runtime.libraries.library import ops_library_path

NAMES = ("prefill", "decode")
TOKENS, STEPS = 128, 40
KEPT: list[Any] = []
WAYS = {
    "weights in each .onnx": {"own": True},
    "one data file": {},
    "one data file, decode without prepacking": {"plain": ["decode"]},
    "one data file, prefill without prepacking": {"plain": ["prefill"]},
    "one data file, no prepacking": {"plain": list(NAMES)},
    "one data file, huge pages": {"huge": True},
    "one data file, no prepacking, huge pages": {"huge": True, "plain": list(NAMES)},
    "shared OrtValues": {"values": True},
    "shared OrtValues, no prepacking": {"values": True, "plain": list(NAMES)},
}


def write(folder: Path) -> None:
    """Save the decoder twice: with one data file, and as two files that have their weights."""
    import torch
    import transformers

    from coreai_onnx.huggingface.exporting import export_model
    from coreai_onnx.program import OnnxProgram

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=8000, hidden_size=512, intermediate_size=1408, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    exported = export_model(model, folder / "model", target="kernels", check=False)
    program = OnnxProgram(dict.fromkeys(NAMES, exported.program.model))
    program.save(folder / "shared.onnx", external_data=True)
    program.save(folder / "own.onnx", external_data=False)


def held() -> dict[str, int]:
    """MiB of this process: its proportional share of memory, and what is not backed by a file."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {name: sizes[name] // 1024 for name in ("Pss", "Pss_Anon")}


def opened(
    folder: Path, way: dict[str, Any], shared: dict[str, ort.OrtValue]
) -> dict[str, ort.InferenceSession]:
    """Open both entrypoints."""
    sessions = {}
    for name in NAMES:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        if way.get("huge"):
            options.add_session_config_entry("coreai.huge_pages", "1")
        options.register_custom_ops_library(str(ops_library_path()))
        if name in way.get("plain", ()):
            options.add_session_config_entry("session.disable_prepacking", "1")
        for key, value in shared.items():
            options.add_initializer(key, value)
        file = folder / f"{'own' if way.get('own') else 'shared'}.{name}.onnx"
        sessions[name] = ort.InferenceSession(str(file), options)
    return sessions


def values(folder: Path) -> dict[str, ort.OrtValue]:
    """Map the data file, and return its weights; sessions do not keep them alive."""
    proto = onnx.load(folder / "shared.prefill.onnx", load_external_data=False)
    data = np.memmap(folder / "shared.onnx.data", np.uint8, mode="r")
    found = {}
    for tensor in proto.graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if place:
            start, size = int(place["offset"]), int(place["length"])
            array = data[start : start + size].view(np.float32).reshape(tuple(tensor.dims))
            found[tensor.name] = ort.OrtValue.ortvalue_from_numpy(array)
            KEPT.append(array)
    return found


def run(session: ort.InferenceSession, length: int, past: int) -> float:
    """Return the milliseconds of processor time of a call."""
    feeds: dict[str, Any] = {}
    for node in session.get_inputs():
        if node.name.startswith("past"):
            feeds[node.name] = np.zeros((1, 4, past, 64), np.float32)
    feeds["input_ids"] = np.ones((1, length), np.int64)
    feeds["attention_mask"] = np.ones((1, past + length), np.int64)
    feeds["position_ids"] = np.arange(past, past + length)[None]
    start = time.process_time()
    session.run(["logits"], feeds)
    return (time.process_time() - start) * 1e3


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Open both in one way, run them, and return what it costs."""
    before, start = held(), time.perf_counter()
    shared = values(folder) if WAYS[name].get("values") else {}
    sessions = opened(folder, WAYS[name], shared)
    seconds = time.perf_counter() - start
    prefill = min(run(sessions["prefill"], TOKENS, 0) for _ in range(5))
    decode = min(run(sessions["decode"], 1, TOKENS) for _ in range(STEPS))
    after = held()
    return {
        "way": name,
        "memory": f"{after['Pss'] - before['Pss']} MiB",
        "anonymous": f"{after['Pss_Anon'] - before['Pss_Anon']} MiB",
        "open": f"{seconds:.2f} s",
        f"prefill {TOKENS}": f"{prefill:.0f} ms",
        "decode": f"{decode:.1f} ms",
    }


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(measure(Path(given.worker[0]), given.worker[1])))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        rows = []
        for way in WAYS:
            command = [sys.executable, "-m", "tools.bench.bundles", "--worker", str(folder), way]
            result = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append(json.loads(result.stdout.splitlines()[-1]))
    print(render(tuple(rows[0]), [tuple(row.values()) for row in rows]))


if __name__ == "__main__":
    main()
