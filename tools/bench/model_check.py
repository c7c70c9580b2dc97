"""CPU time of the check of a finished model, beside the conversion it belongs to.

python -m tools.bench.model_check --layers 12
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

from coreai_onnx import TorchConverter
from coreai_onnx.model.checks.violations import violations
from tools.bench.conversion import subject

T = TypeVar("T")


def timed(step: Callable[[], T]) -> tuple[float, T]:
    """CPU milliseconds of a step, and its result."""
    start = time.process_time()
    result = step()
    return 1e3 * (time.process_time() - start), result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    exported = subject("llama", parser.parse_args().layers)
    converter = TorchConverter().add_exported_program(exported)
    converter.to_onnx().optimize()  # imports
    converting, program = timed(converter.to_onnx)
    lowered = min(timed(lambda: violations(program.model))[0] for _ in range(5))
    optimizing, _ = timed(program.optimize)
    optimized = min(timed(lambda: violations(program.model))[0] for _ in range(5))
    print(f"to_onnx {converting:.0f} ms, of which the check {lowered:.0f} ms")
    print(f"optimize {optimizing:.0f} ms, of which the check {optimized:.0f} ms")


if __name__ == "__main__":
    main()
