"""Many random orders of arrival: each reply of the engine is that of the request alone.

    python -m tools.bench.serving_orders --orders 1000

For each architecture of ``ARCHITECTURES``, with random weights, once with ``target="kernels"`` and
once on a stock onnxruntime, `check_orders` of the engine's tests submits seven requests in so
many orders. A reply that differs is an error.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

from coreai_onnx.huggingface import export_model
from coreai_onnx.huggingface.generation import LanguageModel
from coreai_onnx.targets.opsets import Target
from tests.huggingface.generation.test_engine import ARCHITECTURES, check_orders

_VOCABULARY = 100
"""The first tokens of all models of the zoo."""


def main() -> int:
    """Run the orders, and print a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--only", nargs="*", default=list(ARCHITECTURES), choices=ARCHITECTURES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", help="of the computation")
    options = parser.parse_args()
    targets: tuple[Target, ...] = ("kernels", "onnxruntime")
    for target, name in itertools.product(targets, options.only):
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            model = ARCHITECTURES[name].module()
            how: dict[str, Any] = {"cache": "paged", "target": target, "dtype": options.dtype}
            exported = export_model(model, Path(place, "f"), **how)
            has_kernels = target == "kernels"
            opened = LanguageModel.open(exported.path, kernels=has_kernels, threads=options.threads)
            check_orders(opened, options.orders, _VOCABULARY)
        seconds = time.monotonic() - begin
        print(f"{name}, {target}: {options.orders} orders, {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
