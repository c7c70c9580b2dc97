"""Memory and time of models that are larger than memory, in the shape of Llama 3 70B.

    python -m tools.bench.giants --layers 16 --folder /tmp/giant     # 4-bit export, layer by layer
    python -m tools.bench.giants --layers 16 --folder /tmp/giant --token      # its first token
    python -m tools.bench.giants --structure 126      # Llama 3.1 405B without weights

The checkpoint is written sparse: the first row of each weight is random, the rest are holes, which
read as zeros. No step depends on the values. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from coreai_onnx import session
from coreai_onnx.runtime.memory import mapped_below

BYTES = 2
LIMIT = 2 << 30
SIZES = {
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64},
    "405B": {"hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128},
}


def configuration(layers: int, size: str = "70B") -> LlamaConfig:
    """The shape of Llama 3 with another number of layers."""
    return LlamaConfig(
        vocab_size=128256,
        num_key_value_heads=8,
        num_hidden_layers=layers,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        **SIZES[size],
    )


def write_sparse(folder: Path, layers: int) -> int:
    """Write a checkpoint with a shard for each layer; return the number of parameters."""
    folder.mkdir(parents=True)
    config = configuration(layers)
    config.save_pretrained(folder)
    with torch.device("meta"):
        state = LlamaForCausalLM(config).state_dict()
    shards: dict[str, list[str]] = {}
    for name in state:
        parts = name.split(".")
        shards.setdefault(parts[2] if parts[1] == "layers" else name, []).append(name)
    places = {}
    for number, names in enumerate(shards.values(), 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(folder / file, {name: state[name] for name in names})
        places |= dict.fromkeys(names, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return sum(tensor.numel() for tensor in state.values())


def _write_shard(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    header, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * BYTES
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in tensors.items():
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            row = torch.randn(tensor.shape[-1]).mul(0.02).bfloat16()
            file.write(row.view(torch.uint8).numpy().tobytes())
        file.truncate(8 + len(text) + end)


def peak() -> int:
    """MiB that this process held at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def export(layers: int, folder: Path) -> None:
    """Export the checkpoint in 4 bits, and print the peak and the time at each stage."""
    from coreai_onnx.huggingface.exporting import export_model
    from coreai_onnx.messages import reported_to

    size = write_sparse(folder / "source", layers)
    print(f"{size / 1e9:.1f} billion parameters, {size * BYTES / 1e9:.0f} GB in bfloat16")
    start, shown = time.perf_counter(), set()

    def show(stage: str) -> None:
        layer = stage.partition("layers.")[2].partition(".")[0]
        name = f"quantize layer {layer}" if layer else stage.rpartition(" ")[2]
        if name not in shown:
            shown.add(name)
            wall, cpu = time.perf_counter() - start, time.process_time()
            print(f"{wall:7.0f} s, {cpu:6.0f} s of CPU, peak {peak():5} MiB: {name}", flush=True)

    with reported_to(show):
        how = {"bits": 4, "method": "rtn"}
        done = export_model(
            folder / "source", folder / "4bit", check=False, quantization=how, target="kernels"
        )
        show("done")
    print(done)


def first_token(folder: Path) -> None:
    """Run a prompt of one token, and print the peak and the time."""
    start = time.perf_counter()
    with mapped_below(LIMIT):
        model = session(folder / "4bit" / "model.onnx", prepack=False)
        print(f"{time.perf_counter() - start:.0f} s, peak {peak()} MiB: opened", flush=True)
        feeds = {
            info.name: np.zeros(
                [dim if isinstance(dim, int) else int("past" not in str(dim)) for dim in info.dims],
                info.numpy_dtype,
            )
            for info in (*model.inputs, *model.state_inputs)
        }
        feeds["attention_mask"] = np.ones((1, 1), np.int64)
        logits = model.run(**feeds)["logits"]
        token = logits[0, -1].argmax()
    seconds, cpu = time.perf_counter() - start, time.process_time()
    print(f"{seconds:.0f} s, {cpu:.0f} s of CPU, peak {peak()} MiB: token {token}")


def structure(layers: int) -> None:
    """Build the model without weights, and print the time."""
    start = time.perf_counter()
    with torch.device("meta"):
        model = LlamaForCausalLM(configuration(layers, "405B"))
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{size / 1e9:.0f} billion parameters: {time.perf_counter() - start:.1f} s, {peak()} MiB")


def main() -> None:
    """Measure one of the three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--token", action="store_true")
    parser.add_argument("--structure", type=int)
    options = parser.parse_args()
    if options.structure:
        structure(options.structure)
    elif options.folder is None:
        sys.exit("give --folder")
    elif options.token:
        first_token(options.folder)
    else:
        export(options.layers, options.folder)


if __name__ == "__main__":
    main()
