"""A mixture of experts with few-bit weights: our kernels and bodies beside onnxruntime's MoE, QMoE.

    python -m tools.bench.few_bit_experts
    python -m tools.bench.few_bit_experts --bits 4 --tokens 1 --threads 1

The block has a router, gate and up weights as one product, a gated activation and a second product,
with two experts per token. All of a line run in one process, one after the other, round by round.
Milliseconds are minima of the time that the process takes on all processors; in brackets, the time
of float32 with our kernels divided by it.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

import coreai_onnx
from coreai_onnx.composites import GatherMM
from coreai_onnx.messages import render
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime import ops_library_path
from tools.bench.few_bits import milliseconds
from tools.bench.runners import OnnxRuntimeRunner, Runner

EXPERTS, LANES, HIDDEN, CHOSEN = 8, 1024, 1408, 2
ROUNDS = {1: 60, 16: 30, 128: 12}


class Mixture(torch.nn.Module):
    """A router and its experts, as Qwen3-MoE and Mixtral have them."""

    def __init__(self) -> None:
        """Make random weights."""
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(EXPERTS, 2 * HIDDEN, LANES) / LANES**0.5)
        self.down = torch.nn.Parameter(torch.randn(EXPERTS, LANES, HIDDEN) / HIDDEN**0.5)
        self.router = torch.nn.Linear(LANES, EXPERTS)
        self.product = GatherMM(transpose_rhs=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the chosen experts, ``[tokens, LANES]``."""
        weights, chosen = torch.topk(self.router(x).softmax(-1), CHOSEN)
        weights = weights / weights.sum(-1, keepdim=True)
        gate, up = self.product(x[:, None, None], self.up, rhs_indices=chosen).chunk(2, dim=-1)
        y = self.product(torch.nn.functional.silu(gate) * up, self.down, rhs_indices=chosen)
        return (y.squeeze(2) * weights.unsqueeze(-1)).sum(1)


def programs(bits: int) -> dict[str, OnnxProgram]:
    """Return the block in float32 and quantized, for our kernels and for onnxruntime's ops."""
    torch.manual_seed(0)
    module, tokens = Mixture().eval(), torch.export.Dim("tokens")

    def converted(target: str, rounding: int | None) -> OnnxProgram:
        given = (torch.randn(5, LANES),)
        program = coreai_onnx.convert(module, given, dynamic_shapes=({0: tokens},))
        if rounding is not None:
            program.quantize(bits, method="rtn", activation_bits=rounding, skip=["router"])
        return program.optimize(target=target)

    found = {"float32": converted("kernels", None), "MoE": converted("contrib", None)}
    for rounding, word in ((0, ""), (8, " rounded")):
        found[f"kernel{word}"] = converted("kernels", rounding)
        found[f"QMoE{word}"] = converted("contrib", rounding)
    return found


def runners(made: dict[str, OnnxProgram], tokens: int, threads: int) -> dict[str, Runner]:
    """Return sessions of the programs, and of the function bodies of one."""
    library, feeds = ops_library_path(), {"x": torch.randn(tokens, LANES)}
    found: dict[str, Runner] = {}
    for name, program in made.items():
        nodes = {node.op_type.partition(".")[0] for node in program.model.graph}
        if name.startswith("QMoE") and "QMoE" not in nodes:
            continue
        proto = program.to_proto()
        found[name] = OnnxRuntimeRunner(proto, feeds, threads, library=library)
        if name == "kernel":
            found["body"] = OnnxRuntimeRunner(proto, feeds, threads)
    return found


def main() -> int:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 16, 128])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    for bits in options.bits:
        made = programs(bits)
        for threads in options.threads:
            lines, header = [], ("threads", "bits", "tokens")
            for tokens in options.tokens:
                found = runners(made, tokens, threads)
                rounds = ROUNDS.get(tokens, min(ROUNDS.values()))
                times = milliseconds(found, rounds, clock=time.process_time)
                base = times["float32"]
                cells = [f"{t:.2f} ({base / t:.2f})" for t in times.values()]
                lines.append((str(threads), str(bits), str(tokens), *cells))
                names = tuple(times)
            print(render((*header, *names), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
