"""Measures products with one constant matrix by tiles, beside torch and fused multiply-adds.

``python -m tools.bench.tile_products --rows 1 8 64 256 --sizes 1024 4096`` prints a table: process
CPU time, minima of interleaved rounds. Cycles per product are relative to products of tiles from
registers, which take 16 (a product of float16 is four of them, one of float32 is six). The last
columns are times of other implementations divided by ours; onnxruntime multiplies float32 only.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable, Iterator

import onnx
import torch
from onnx import helper

from coreai_onnx.composites.declaration import DOMAIN
from coreai_onnx.runtime.libraries.library import ops_library_path
from tools.bench.limits import Limits
from tools.bench.runners import ONNX_TYPES, OnnxRuntimeRunner

TARGETS = ("amx", "avx512_bf16")
PRODUCT_CYCLES = 16
CALLS = 4
"""Of an implementation in a round: the first one finds the caches full of the others' data."""
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
ENTRIES = {"coreai.float32_tiles": "1"}
"""Of sessions with tiles; those of the other targets have none."""


def product_model(x: torch.Tensor, weight: torch.Tensor, op: str = "gather_mm") -> onnx.ModelProto:
    """A model of one product without indices, whose matrix is constant."""
    onnx_type = ONNX_TYPES[x.dtype]
    raw = weight.contiguous().view(torch.uint16).numpy().tobytes()
    matrix = helper.make_tensor("w", onnx_type, weight.shape, raw, raw=True)
    domain = DOMAIN if op == "gather_mm" else ""
    node = helper.make_node(op, ["x", "w"], ["y"], domain=domain)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", onnx_type, x.shape)],
        [helper.make_tensor_value_info("y", onnx_type, [len(x), weight.shape[1]])],
        [matrix],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def in_onnxruntime(
    x: torch.Tensor, weight: torch.Tensor, target: str, threads: int
) -> OnnxRuntimeRunner:
    """The product on the kernels of an instruction set."""
    os.environ["COREAI_OPS_TARGET"] = target
    model = product_model(x, weight)
    entries = ENTRIES if target == "amx" else None
    return OnnxRuntimeRunner(model, {"x": x}, threads, library=ops_library_path(), entries=entries)


def minima(runs: dict[str, Callable[[], object]], rounds: int, *, wall: bool) -> dict[str, float]:
    """Seconds of each run, minima of interleaved rounds."""
    clock = time.perf_counter if wall else time.process_time
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            for _ in range(1 if name == "tiles" else CALLS):
                start = clock()
                run()
                best[name] = min(best[name], clock() - start)
    return best


def rows_of_table(arguments: argparse.Namespace) -> Iterator[str]:
    """The lines of the table, one for each dtype, size and number of rows."""
    limits = Limits(arguments.threads)
    for dtype in arguments.dtypes:
        for size in arguments.sizes:
            weight = (torch.randn(size, size) * size**-0.5).to(DTYPES[dtype])
            for rows in arguments.rows:
                x = torch.randn(rows, size).to(DTYPES[dtype])
                runs: dict[str, Callable[[], object]] = {
                    target: in_onnxruntime(x, weight, target, arguments.threads)
                    for target in TARGETS
                }
                runs["torch"] = functools.partial(torch.matmul, x, weight)
                if dtype == "float32":
                    model = product_model(x, weight, "MatMul")
                    runs["onnxruntime"] = OnnxRuntimeRunner(model, {"x": x}, arguments.threads)
                runs["tiles"] = limits.amx
                yield line(
                    dtype, rows, size, minima(runs, arguments.rounds, wall=arguments.wall), limits
                )


def line(dtype: str, rows: int, size: int, best: dict[str, float], limits: Limits) -> str:
    """A row of the table."""
    flops = 2.0 * rows * size * size
    peak = limits.amx() / best["tiles"]
    ours = flops / best["amx"]
    other = best.get("onnxruntime")
    ratio = "–" if other is None else f"{other / best['amx']:.2f}"
    return (
        f"| {dtype}, {rows} rows, {size} × {size} | {best['amx'] * 1e3:.3f} | {ours / 1e9:.0f} "
        f"| {PRODUCT_CYCLES * peak / ours:.1f} | {100 * ours / peak:.0f} % "
        f"| {best['torch'] / best['amx']:.2f} | {best['avx512_bf16'] / best['amx']:.2f} "
        f"| {ratio} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256, 1024])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024])
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--wall", action="store_true", help="wall time, for several threads")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    columns = (
        "ms | GFLOP/s | cycles per product | of the peak | torch | multiply-adds | onnxruntime"
    )
    print(f"| product | {columns} |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for text in rows_of_table(arguments):
        print(text, flush=True)


if __name__ == "__main__":
    main()
