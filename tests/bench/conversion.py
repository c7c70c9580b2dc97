"""Conversion time next to torch.onnx.export, interleaved in one process.

    python -m tests.bench.conversion --model llama --layers 12 --rounds 3
    python -m tests.bench.conversion --model minilm

Both start from the same ``ExportedProgram`` and end with the file on disk. Times are process CPU
seconds (minimum and median), so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from coreai_onnx import TorchConverter
from coreai_onnx.table import render


def llama(layers: int) -> tuple[torch.nn.Module, tuple[Any, ...], Any]:
    """A Llama-like model, 100 million parameters at 12 layers."""
    config = transformers.LlamaConfig(
        vocab_size=16000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    return model, (torch.randint(0, 16000, (1, 16)),), {0: "seq"}


def minilm(_layers: int) -> tuple[torch.nn.Module, tuple[Any, ...], Any]:
    """The architecture of the MiniLM sentence encoder: 6 layers of 384."""
    config = transformers.BertConfig(
        hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=12
    )
    torch.manual_seed(0)
    return transformers.BertModel(config).eval(), (torch.randint(0, 30000, (2, 16)),), None


class Logits(torch.nn.Module):
    """The first output of a model for its token ids."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        options = {"use_cache": False} if "Llama" in type(self.model).__name__ else {}
        result: torch.Tensor = self.model(input_ids=input_ids, **options)[0]
        return result


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["llama", "minilm"], default="llama")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model, args, _ = {"llama": llama, "minilm": minilm}[options.model](options.layers)
    module = Logits(model)
    seq = torch.export.Dim("seq", min=2, max=512)
    with torch.no_grad():
        started = time.process_time()
        program = torch.export.export(module, args, dynamic_shapes={"input_ids": {1: seq}})
        print(f"torch.export: {time.process_time() - started:.2f} s (not counted below)")
    count = sum(p.numel() for p in model.parameters())
    print(f"{options.model}: {count / 1e6:.0f} M parameters, {len(program.graph.nodes)} FX nodes")
    times: dict[str, list[float]] = {"coreai_onnx": [], "torch.onnx.export": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            times["coreai_onnx"].append(_seconds(lambda: _ours(program, Path(folder))))
            times["torch.onnx.export"].append(_seconds(lambda: _theirs(program, Path(folder))))
    peer = times["torch.onnx.export"]
    rows = [
        (
            name,
            f"{min(t):.2f}",
            f"{statistics.median(t):.2f}",
            f"{min(peer) / min(t):.2f}",
            f"{statistics.median(peer) / statistics.median(t):.2f}",
        )
        for name, t in times.items()
    ]
    print(render(("", "min s", "median s", "ratio of minima", "ratio of medians"), rows))


def _ours(program: torch.export.ExportedProgram, folder: Path) -> None:
    converted = TorchConverter().add_exported_program(program).to_onnx().optimize()
    converted.save(folder / "ours.onnx", external_data=True)


def _theirs(program: torch.export.ExportedProgram, folder: Path) -> None:
    converted = torch.onnx.export(program, dynamo=True, verbose=False)
    assert converted is not None
    converted.save(str(folder / "theirs.onnx"), external_data=True)


def _seconds(work: Callable[[], None]) -> float:
    with torch.no_grad():
        started = time.process_time()
        work()
        return time.process_time() - started


if __name__ == "__main__":
    main()
