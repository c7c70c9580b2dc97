"""Time of a run with ``low_memory`` and without: ``python -m tools.bench.low_memory``.

A Llama of 2 layers of 256 with 512 tokens, and three branches of convolutions of 64 × 64; one
thread, process CPU time, minima of interleaved rounds in milliseconds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import torch
import transformers

import coreai_onnx
from coreai_onnx.messages import render
from coreai_onnx.runtime.sessions.session import Session


class Branches(torch.nn.Module):
    """The sum of three convolutions of one input."""

    def __init__(self) -> None:
        """Make random weights."""
        super().__init__()
        self.branches = torch.nn.ModuleList(torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        first, second, third = (torch.relu(branch(x)) for branch in self.branches)
        return first + second + third


def models() -> dict[str, tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]:
    """Return modules and their arguments."""
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=4096, hidden_size=256, intermediate_size=704, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=2, use_cache=False,
        )
    )  # fmt: skip
    tokens = torch.randint(0, 4096, (1, 512))
    return {"llama": (llama, (tokens,)), "branches": (Branches(), (torch.randn(1, 8, 64, 64),))}


def milliseconds(sessions: dict[bool, Session], given: tuple[Any, ...], rounds: int) -> list[str]:
    """Return the least time of a run of each session."""
    seconds: dict[bool, list[float]] = {low: [] for low in sessions}
    for _ in range(rounds + 1):
        for low, opened in sessions.items():
            begun = time.process_time()
            opened.run(*given)
            seconds[low].append(time.process_time() - begun)
    return [f"{min(took[1:]) * 1e3:.2f}" for took in seconds.values()]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name, (module, given) in models().items():
        program = coreai_onnx.convert(module.eval(), given)
        for kernels in (False, True):
            sessions = {
                low: Session(program, kernels=kernels, threads=1, low_memory=low)
                for low in (False, True)
            }
            taken = milliseconds(sessions, given, options.rounds)
            rows.append((name, "kernels" if kernels else "bodies", *taken))
    print(render(("model", "runs on", "ms", "with low_memory"), rows))


if __name__ == "__main__":
    main()
