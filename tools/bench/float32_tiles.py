"""Whole models in float32 whose products are multiplied by tiles, beside onnxruntime and torch.

    python -m tools.bench.float32_tiles
    python -m tools.bench.float32_tiles --models bert vit --rounds 20

One thread, CPU time of the process; all variants of a model take turns. *stock* is the default file
in a stock onnxruntime, *kernels* that of the target `kernels` with our kernels; *body* and *tiles*
are the file of `optimize(target="kernels", float32_tiles=True)`, whose products are onnxruntime's
or by tiles. Each has the minimum and the median in milliseconds, and the root mean square of the
errors of the first output, relative to its own, from the module in float64.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import transformers

import coreai_onnx
from coreai_onnx.messages import render
from coreai_onnx.runtime.sessions.session import Session
from tools.bench.bfloat16_models import VOCABULARY, First, Inputs

TOKENS = 128
PROMPT = 256


def bert() -> tuple[torch.nn.Module, Inputs]:
    """BERT base with 6 layers."""
    config = transformers.BertConfig(vocab_size=VOCABULARY, num_hidden_layers=6)
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS))
    return First(transformers.BertModel(config), ("input_ids",)), (tokens,)


def vit() -> tuple[torch.nn.Module, Inputs]:
    """ViT-S of 12 layers, 197 patches."""
    config = transformers.ViTConfig(hidden_size=384, intermediate_size=1536, num_attention_heads=6)
    return First(transformers.ViTModel(config), ("pixel_values",)), (torch.randn(1, 3, 224, 224),)


def encoder() -> tuple[torch.nn.Module, Inputs]:
    """torch's encoder: 4 layers of 512, 256 tokens in two rows."""
    layer = torch.nn.TransformerEncoderLayer(512, 8, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), (
        torch.randn(2, TOKENS, 512),
    )


def llama() -> tuple[torch.nn.Module, Inputs]:
    """The prefill of a Llama with 100 million parameters."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=768, intermediate_size=2048, num_hidden_layers=12,
        num_attention_heads=12, num_key_value_heads=4,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(0, VOCABULARY, (1, PROMPT))
    return First(model, ("input_ids",), use_cache=False), (tokens,)


MODELS = {"bert": bert, "vit": vit, "encoder": encoder, "llama": llama}
VARIANTS = ("stock", "kernels", "body", "tiles", "torch", "torch.compile")


def variants_of(
    module: torch.nn.Module, inputs: Inputs, names: tuple[str, ...]
) -> dict[str, Callable[[], Any]]:
    """Return the implementations of a module."""

    def opened(target: Any, *, tiled: bool = False, **settings: Any) -> Callable[[], Any]:
        program = coreai_onnx.convert(module, inputs)
        program.optimize(target=target, float32_tiles=tiled)
        session = Session(program, threads=1, **settings)
        return lambda: session.run(*inputs)[0]

    def compiled() -> Callable[[], Any]:
        function = torch.compile(module)
        return lambda: function(*inputs)

    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "stock": lambda: opened("onnxruntime", kernels=False),
        "kernels": lambda: opened("kernels", kernels=True),
        "body": lambda: opened("kernels", tiled=True, kernels=True),
        "tiles": lambda: opened("kernels", tiled=True, float32_tiles=True),
        "torch": lambda: lambda: module(*inputs),
        "torch.compile": compiled,
    }
    return {name: makers[name]() for name in names}


def measure(name: str, names: tuple[str, ...], rounds: int) -> dict[str, str]:
    """Return minimum, median and error of each variant."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    module.eval()
    variants = variants_of(module, inputs, names)
    with torch.inference_mode():
        exact = [x.double() if x.is_floating_point() else x for x in inputs]
        want = deepcopy(module).double()(*exact)
        errors = {}
        for variant, run in variants.items():
            error = torch.as_tensor(run()).double() - want
            errors[variant] = float(error.square().mean().sqrt() / want.square().mean().sqrt())
        seconds: dict[str, list[float]] = {variant: [] for variant in variants}
        for _ in range(rounds):
            for variant, run in variants.items():
                begun = time.process_time()
                run()
                seconds[variant].append(time.process_time() - begun)
    return {
        variant: f"{min(took) * 1e3:.1f} / {statistics.median(took) * 1e3:.1f} "
        f"({errors[variant]:.1e})"
        for variant, took in seconds.items()
    }


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rows = []
    for name in options.models:
        measured = measure(name, tuple(options.variants), options.rounds)
        rows.append((name, *measured.values()))
        print(render(("ms (error)", *measured), [rows[-1]]), flush=True)
    print(render(("ms (error)", *measured), rows))


if __name__ == "__main__":
    main()
