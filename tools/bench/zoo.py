"""Every architecture of docs/models.md on the kernels, beside stock onnxruntime and torch.

    python -m tools.bench.zoo
    python -m tools.bench.zoo --models llama vit --size 1 128 --compile

The models are those of tests/models, small, one thread, whose own time is taken; all ways of a
model take turns on the same inputs. *kernels* is the file of the target `kernels` with our library,
the others are the files of the default target and of `contrib` in a stock onnxruntime, and torch on
the module. Ratios are times divided by that of the kernels, of minima and of medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import coreai_onnx
from coreai_onnx import TorchConverter
from coreai_onnx.messages import render
from tests.models.architecture import Architecture
from tests.models.zoo import ARCHITECTURES, named

WAYS = ("kernels", "stock", "contrib", "torch")
CALLS = 5
"""The measured calls in each turn of a way."""


def main() -> None:
    """Measure, and print a row per architecture as it is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=[a.name for a in ARCHITECTURES])
    parser.add_argument("--size", type=int, nargs=2, default=(1, 16), help="batch and length")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--compile", action="store_true", help="also torch.compile")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    ways = (*WAYS, *["torch.compile"] * options.compile)
    rows = []
    for name in options.models:
        times = measured(named(name), tuple(options.size), ways, options.rounds)
        rows.append((name, *columns(times)))
        print(*rows[-1], sep=" | ", flush=True)
    print(render(("", "kernels µs", *ways[1:], "slower than"), rows))


def measured(
    architecture: Architecture, size: tuple[int, int], ways: tuple[str, ...], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of each run of each way."""
    module = architecture.module()
    exported = architecture.export(module)
    arguments = architecture.arguments(*size)

    def opened(target: Any, *, kernels: bool) -> Callable[[], Any]:
        program = TorchConverter().add_exported_program(exported).to_onnx()
        program.optimize(target=target)
        session = coreai_onnx.session(program, kernels=kernels, threads=1).ort
        feeds = {one.name: arguments[one.name].numpy() for one in session.get_inputs()}
        return lambda: session.run(None, feeds)

    def in_torch(function: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: function(**arguments)

    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "kernels": lambda: opened("kernels", kernels=True),
        "stock": lambda: opened("onnxruntime", kernels=False),
        "contrib": lambda: opened("contrib", kernels=False),
        "torch": lambda: in_torch(module),
        "torch.compile": lambda: in_torch(torch.compile(module)),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    with torch.inference_mode():
        calls = {way: makers[way]() for way in ways}
        for index in range(rounds // CALLS + 1):
            for way in list(ways)[:: 1 if index % 2 else -1]:
                for turn in range(CALLS + 2):
                    begun = time.thread_time()
                    calls[way]()
                    # The first round allocates and compiles; the first calls of a turn bring back
                    # the code and data that the way before it displaced.
                    if index and turn >= 2:
                        times[way].append(time.thread_time() - begun)
    return times


def columns(times: dict[str, list[float]]) -> list[str]:
    """Return the time of the kernels, the ratios of the others, and which of them are faster."""
    best, middle = min(times["kernels"]), statistics.median(times["kernels"])
    ratios = {
        way: (min(took) / best, statistics.median(took) / middle)
        for way, took in times.items()
        if way != "kernels"
    }
    faster = [way for way, both in ratios.items() if max(both) < 1]
    return [
        f"{best * 1e6:.0f} / {middle * 1e6:.0f}",
        *(f"{least:.2f} ({median:.2f})" for least, median in ratios.values()),
        ", ".join(faster),
    ]


if __name__ == "__main__":
    main()
