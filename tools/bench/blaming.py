"""Time and memory of ``blame`` and ``compare`` on a Llama of 100 million parameters; of ``diff``.

python -m tools.bench.blaming --tokens 32
python -m tools.bench.blaming --steps before blame --nodes
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable

import onnx_ir as ir
import torch
import transformers

import coreai_onnx
from coreai_onnx.debugging import diff_models
from coreai_onnx.messages import render
from coreai_onnx.program import OnnxProgram
from tools.bench.generation_models import config
from tools.bench.large_graphs import chain


def measured(step: Callable[[], object]) -> tuple[float, str]:
    """Return the seconds of a step, and the highest memory of the process after it."""
    begin = time.perf_counter()
    step()
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return seconds, f"{peak} MiB"


def llama(tokens: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor], OnnxProgram]:
    """Return the module, its arguments, and its conversion."""
    torch.manual_seed(0)
    module = transformers.LlamaForCausalLM(config("100m")).eval()
    module.config.use_cache = False
    given = {"input_ids": torch.randint(4, 1000, (1, tokens))}
    return module, given, coreai_onnx.convert(module, kwargs=given)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--nodes", type=int, nargs="*", default=[25_000, 100_000])
    parser.add_argument("--steps", nargs="+", default=["before", "compare", "blame"])
    options = parser.parse_args()
    module, given, program = llama(options.tokens)
    steps: dict[str, Callable[[], object]] = {
        "before": lambda: None,
        "compare": lambda: coreai_onnx.compare(program, module, given).assert_close(),
        "blame": lambda: coreai_onnx.blame(program).assert_clean(),
    }
    rows = []
    for name in options.steps:
        seconds, peak = measured(steps[name])
        rows.append((name, f"{seconds:.2f} s", peak))
    for count in options.nodes:
        first, second = (OnnxProgram({"main": ir.from_proto(chain(count))}) for _ in range(2))
        seconds, peak = measured(lambda a=first, b=second: diff_models(a, b))  # type: ignore[misc]
        rows.append((f"diff of {count} nodes", f"{seconds:.2f} s", peak))
    print(render(("step", "time", "highest memory so far"), rows))


if __name__ == "__main__":
    main()
