"""Lines of models as Python, and the time to write and to build them.

python -m tools.bench.python_source
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import coreai_onnx
from coreai_onnx import OnnxProgram
from coreai_onnx.messages import render
from tests.models.decoders import SHAPE
from tests.models.zoo import named
from tools import quickstart
from tools.bench.conversion import Logits, llama, sequence

ZOO = ("bert", "gpt2", "t5", "whisper", "vit")


def converted(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> OnnxProgram:
    return coreai_onnx.convert(module, args, dynamic_shapes=sequence())


def narrow_llama() -> OnnxProgram:
    config = LlamaConfig(**{**SHAPE, "num_hidden_layers": 32})
    torch.manual_seed(0)
    return converted(Logits(LlamaForCausalLM(config).eval()), (torch.randint(0, 100, (1, 16)),))


def from_zoo(name: str) -> OnnxProgram:
    architecture = named(name)
    return coreai_onnx.convert(architecture.export(architecture.module()))


PROGRAMS: dict[str, Callable[[], OnnxProgram]] = {
    "MiniLM, 6 layers, real weights": lambda: quickstart.convert(quickstart.load()).optimize(),
    "Llama, 12 layers of 768": lambda: converted(*llama(12)),
    "Llama, 32 layers": narrow_llama,
    **{f"{name} of the zoo": lambda name=name: from_zoo(name) for name in ZOO},
}


def measured(program: OnnxProgram, folder: Path) -> tuple[int, int, float, float]:
    """Return nodes, lines of the model file, seconds to write, and seconds to build."""
    start = time.perf_counter()
    program.to_python(folder)
    written = time.perf_counter()
    coreai_onnx.from_python(folder)
    built = time.perf_counter()
    lines = len((folder / "model.py").read_text().splitlines())
    return len(program.model.graph), lines, round(written - start, 2), round(built - written, 2)


def main() -> None:
    from coreai_onnx.model.python import package  # noqa: F401  the imports are not measured

    rows = []
    for name, make in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as temporary:
            rows.append((name, *measured(make(), Path(temporary) / "written")))
    print(render(("model", "nodes", "lines of model.py", "write s", "build s"), rows))


if __name__ == "__main__":
    main()
