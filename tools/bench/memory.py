"""Peak memory of converting, optimizing and saving a large Llama-like model in bfloat16.

    python -m tools.bench.memory --layers 44              # 2.1 billion parameters in memory
    python -m tools.bench.memory --layers 44 --lazy       # mapped from a safetensors file

Nothing is asserted. Each run is a process of its own, because a process's peak never goes down.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.initialization import no_init_weights

MIB = 1 << 20


def configuration(layers: int) -> LlamaConfig:
    """Grouped heads and an untied head; 45 M parameters a layer, 131 M beside them."""
    return LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
        use_cache=False,
    )


def held() -> dict[str, int]:
    """MiB that this process holds: in all, and without the pages of files."""
    wanted = {"VmRSS": "all", "RssAnon": "anonymous"}
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":") for line in lines)
    return {wanted[k]: int(v.split()[0]) // 1024 for k, v in pairs if k in wanted}


def in_memory(layers: int) -> torch.nn.Module:
    """A model whose weights have been written to, so that every page of them is held."""
    with no_init_weights():
        model = LlamaForCausalLM(configuration(layers)).bfloat16()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02, generator=generator)
    return model.eval()


def mapped(layers: int, file: Path) -> torch.nn.Module:
    """The same model on the meta device, its weights mapped from a safetensors file."""
    with torch.device("meta"):
        model = LlamaForCausalLM(configuration(layers))
    model.load_state_dict(load_file(file), strict=False, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


def measure(layers: int, weights: Path | None, folder: Path) -> None:
    """Convert and save one model, and print what was held."""
    import coreai_onnx

    model = in_memory(layers) if weights is None else mapped(layers, weights)
    size = sum(p.numel() * p.element_size() for p in model.parameters()) // MIB
    peak, done = held(), threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for kind, value in held().items():
                peak[kind] = max(peak[kind], value)

    watcher = threading.Thread(target=watch)
    print(f"weights {size} MiB, held before: {held()['all']} MiB", flush=True)
    watcher.start()
    start = time.perf_counter()
    dims = {"input_ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=4096)}}
    program = coreai_onnx.convert(model, (torch.randint(0, 100, (2, 8)),), dynamic_shapes=dims)
    program.save(folder / "model.onnx")
    done.set()
    watcher.join()
    print(
        f"peak {peak['all']} MiB in all, {peak['anonymous']} MiB without pages of files; "
        f"above the weights {peak['all'] - size} MiB; {time.perf_counter() - start:.0f} s"
    )
    print("\n".join(f"{f.name} {f.stat().st_size // 1024} KiB" for f in folder.glob("model.onnx*")))


def main() -> None:
    """Measure in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=44)
    parser.add_argument("--lazy", action="store_true")
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        measure(options.layers, options.weights, options.folder)
        return
    with tempfile.TemporaryDirectory() as name:
        folder, extra = Path(name), []
        if options.lazy:
            file = folder / "weights.safetensors"
            save_file(in_memory(options.layers).state_dict(), file)
            extra = ["--weights", str(file)]
        command = [sys.executable, "-m", "tools.bench.memory", "--layers", str(options.layers)]
        subprocess.run([*command, "--folder", name, *extra], check=True)


if __name__ == "__main__":
    main()
