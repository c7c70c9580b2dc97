"""Conversion measured: time, growth with the number of layers, memory, share of torch.export.

    python -m tools.bench.conversion speed --model llama --rounds 3
    python -m tools.bench.conversion growth --layers 12 24 48
    python -m tools.bench.conversion memory --layers 12 24
    python -m tools.bench.conversion convert --layers 12

``speed`` runs ``torch.onnx.export`` beside, interleaved in one process. Both start from the same
``ExportedProgram`` and end with the file on disk. Times are process CPU seconds, so that other work
on the machine does not count. ``memory`` is the peak of the resident set while a program becomes a
file, above what was resident before (the program's weights among it), each in a process of its own.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import coreai_onnx
from coreai_onnx import TorchConverter
from coreai_onnx.messages import render
from tests.models.zoo import named

Exporter = Callable[[torch.export.ExportedProgram, Path], None]
SMALL = ("mixtral", "qwen3_moe", "deepseek_v3", "qwen3_next", "whisper", "vit")


class Logits(torch.nn.Module):
    """The first output of a model for its token ids."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        options = {"use_cache": False} if "Llama" in type(self.model).__name__ else {}
        result: torch.Tensor = self.model(input_ids=input_ids, **options)[0]
        return result


def llama(layers: int) -> tuple[torch.nn.Module, tuple[Any, ...]]:
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
    return Logits(transformers.LlamaForCausalLM(config).eval()), (torch.randint(0, 16000, (1, 16)),)


def minilm() -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """The architecture of the MiniLM sentence encoder: 6 layers of 384."""
    config = transformers.BertConfig(
        hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=12
    )
    torch.manual_seed(0)
    return Logits(transformers.BertModel(config).eval()), (torch.randint(0, 30000, (2, 16)),)


def subject(model: str, layers: int) -> torch.export.ExportedProgram:
    """Return the exported program of a model, with a dynamic sequence."""
    if model in SMALL:
        architecture = named(model)
        return architecture.export(architecture.module())
    module, args = llama(layers) if model == "llama" else minilm()
    with torch.no_grad():
        return torch.export.export(module, args, dynamic_shapes=sequence())


def sequence() -> Any:
    """The dynamic shapes of the models that are not in the zoo."""
    return {"input_ids": {1: torch.export.Dim("seq", min=2, max=512)}}


# ---------------------------------------------------------------------- exporters
def ours(program: torch.export.ExportedProgram, folder: Path) -> None:
    """Convert, optimize and save."""
    converted = TorchConverter().add_exported_program(program).to_onnx().optimize()
    converted.save(folder / "ours.onnx", external_data=True)


def theirs(program: torch.export.ExportedProgram, folder: Path) -> None:
    """The same with torch's exporter."""
    converted = torch.onnx.export(program, dynamo=True, verbose=False)
    assert converted is not None
    converted.save(str(folder / "theirs.onnx"), external_data=True)


EXPORTERS: dict[str, Exporter] = {"coreai_onnx": ours, "torch.onnx.export": theirs}


def seconds(exporter: Exporter, program: torch.export.ExportedProgram) -> float | None:
    """Return the CPU seconds of one conversion; None if it fails."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        started = time.process_time()
        try:
            exporter(program, Path(folder))
        except Exception as error:  # noqa: BLE001 - whatever the peer raises is its result
            print(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}")
            return None
        return time.process_time() - started


# ---------------------------------------------------------------------- what is measured
def speed(models: Sequence[str], layers: int, rounds: int) -> None:
    """Print the times of both exporters, model by model."""
    rows = []
    for model in models:
        program = subject(model, layers)
        times: dict[str, list[float | None]] = {name: [] for name in EXPORTERS}
        for _ in range(rounds):
            for name, exporter in EXPORTERS.items():
                if None not in times[name]:
                    times[name].append(seconds(exporter, program))
        rows.append((model, len(program.graph.nodes), *_compared(*times.values())))
        print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    heads = ("model", "FX nodes", "ours min / median s", "peer min / median s", "ratio of both")
    print(render(heads, rows))


def _compared(mine: list[float | None], peer: list[float | None]) -> tuple[str, str, str]:
    if None in mine or None in peer:
        return _summary(mine), _summary(peer), "–"
    a, b = [t for t in mine if t is not None], [t for t in peer if t is not None]
    ratio = f"{min(b) / min(a):.1f} / {statistics.median(b) / statistics.median(a):.1f}"
    return _summary(mine), _summary(peer), ratio


def _summary(times: list[float | None]) -> str:
    found = [t for t in times if t is not None]
    if len(found) < len(times):
        return "fails"
    return f"{min(found):.2f} / {statistics.median(found):.2f}"


def growth(layers: Sequence[int], rounds: int) -> None:
    """Print our time by number of layers, and how well a straight line fits."""
    rows, times = [], []
    for count in layers:
        program = subject("llama", count)
        found = [t for _ in range(rounds) if (t := seconds(ours, program)) is not None]
        times.append(min(found))
        rows.append((count, len(program.graph.nodes), f"{times[-1]:.2f}"))
    print(render(("layers", "FX nodes", "min s"), rows))
    slope, start = np.polyfit(layers, times, 1)
    fitted = start + slope * np.asarray(layers)
    rest = float(np.abs(fitted - times).max())
    print(f"{start:.2f} s + {slope * 1000:.0f} ms a layer; no point is more than {rest:.2f} s off")


def memory(model: str, layers: Sequence[int]) -> None:
    """Print the peak of each exporter above what was resident before, in fresh processes."""
    rows = []
    for count in layers:
        for name in EXPORTERS:
            inside = [sys.executable, "-m", "tools.bench.conversion", "_peak", "--model", model]
            call = [*inside, "--layers", str(count), "--exporter", name]
            done = subprocess.run(call, capture_output=True, text=True, check=True)
            weights, before, peak = map(float, done.stdout.split()[-3:])
            cells = (f"{x:.0f}" for x in (weights, before, peak - before))
            rows.append((name, count, *cells))
    print(render(("", "layers", "weights MB", "resident before MB", "peak above MB"), rows))


def peak(model: str, layers: int, exporter: str) -> None:
    """Print weights, resident set before, and its peak during one conversion, in MB."""
    small = subject("vit", 0)
    seconds(EXPORTERS[exporter], small)  # modules and tables that are loaded once
    program = subject(model, layers)
    weights = sum(p.numel() * p.element_size() for p in program.state_dict.values()) / 1e6
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = _resident("VmRSS")
    assert seconds(EXPORTERS[exporter], program) is not None
    print(weights, before, _resident("VmHWM"))


def _resident(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(name))
    return int(line.split()[1]) * 1024 / 1e6


def convert(layers: int, rounds: int) -> None:
    """Print the time of ``coreai_onnx.convert`` and what torch.export takes of it."""
    module, args = llama(layers)
    rows = []
    for _ in range(rounds):
        started = time.process_time()
        with torch.no_grad():
            torch.export.export(module, args, dynamic_shapes=sequence())
        exported = time.process_time()
        program = coreai_onnx.convert(module, args, dynamic_shapes=sequence())
        converted = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            program.save(Path(folder) / "model.onnx", external_data=True)
        saved = time.process_time()
        rows.append([exported - started, converted - exported, saved - converted])
    cells = [f"{min(column):.2f}" for column in zip(*rows, strict=True)]
    print(render(("torch.export alone s", "coreai_onnx.convert s", "save s"), [cells]))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["speed", "growth", "memory", "convert", "_peak"])
    parser.add_argument("--model", nargs="+", default=["llama"])
    parser.add_argument("--layers", type=int, nargs="+", default=[12])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exporter", choices=list(EXPORTERS), default="coreai_onnx")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.what == "speed":
        speed(options.model, options.layers[0], options.rounds)
    elif options.what == "growth":
        growth(options.layers, options.rounds)
    elif options.what == "memory":
        memory(options.model[0], options.layers)
    elif options.what == "convert":
        convert(options.layers[0], options.rounds)
    else:
        peak(options.model[0], options.layers[0], options.exporter)


if __name__ == "__main__":
    main()
