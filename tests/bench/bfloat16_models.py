"""Whole models in bfloat16 on the kernels, beside torch's own bfloat16 and our float32.

    python -m tests.bench.bfloat16_models
    python -m tests.bench.bfloat16_models --models llama vit --rounds 10

One thread, in CPU time of the process; all variants of a model take turns. *bfloat16* is the file
of the module in bfloat16 for the target `kernels`, *float32 products* the one for the default
target, whose products are in float32 between casts; *bfloat16 weights* is the file in float32 of
the same weights, which are stored in bfloat16 (`store_weights_as`). Errors are the largest ones of
the first output, relative to its largest magnitude, from the module in float32 with the same
weights.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers

import coreai_onnx
from coreai_onnx.passes.stored_weights import store_weights_as
from coreai_onnx.runtime.session import Session
from coreai_onnx.table import render

Inputs = tuple[torch.Tensor, ...]
VOCABULARY = 4096
TOKENS = 128


class First(torch.nn.Module):
    """A model as a function of tensors, which returns its first output."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...], **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Call the model."""
        given = dict(zip(self.names, inputs, strict=True))
        output: torch.Tensor = self.model(**given, **self.fixed)[0]
        return output


@dataclass(frozen=True)
class Variant:
    """One implementation of a model."""

    name: str
    run: Callable[[], Any]


def tokens() -> torch.Tensor:
    """Return a prompt."""
    return torch.randint(0, VOCABULARY, (1, TOKENS))


def bert() -> tuple[First, Inputs]:
    """BERT base with 4 layers."""
    config = transformers.BertConfig(vocab_size=VOCABULARY, num_hidden_layers=4)
    return First(transformers.BertModel(config), ("input_ids",)), (tokens(),)


def llama() -> tuple[First, Inputs]:
    """Llama with 4 layers, 16 heads of queries and 4 of keys."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=1024, intermediate_size=2816, num_hidden_layers=4,
        num_attention_heads=16, num_key_value_heads=4,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    return First(model, ("input_ids",), use_cache=False), (tokens(),)


def qwen3_moe() -> tuple[First, Inputs]:
    """Qwen3-MoE with 4 layers, 2 of 8 experts for each token."""
    config = transformers.Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, head_dim=64, num_experts=8,
        num_experts_per_tok=2, moe_intermediate_size=768,
    )  # fmt: skip
    model = transformers.Qwen3MoeForCausalLM(config)
    return First(model, ("input_ids",), use_cache=False), (tokens(),)


def whisper() -> tuple[First, Inputs]:
    """Whisper tiny, 400 frames of audio and 16 tokens."""
    config = transformers.WhisperConfig(vocab_size=VOCABULARY, max_source_positions=200)
    config.pad_token_id = config.bos_token_id = config.eos_token_id = 0
    config.decoder_start_token_id = 0
    model = First(
        transformers.WhisperModel(config), ("input_features", "decoder_input_ids"), use_cache=False
    )
    return model, (torch.randn(1, config.num_mel_bins, 400), tokens()[:, :16])


def vit() -> tuple[First, Inputs]:
    """ViT base with 4 layers."""
    model = transformers.ViTModel(transformers.ViTConfig(num_hidden_layers=4))
    return First(model, ("pixel_values",)), (torch.randn(1, 3, 224, 224),)


MODELS = {"bert": bert, "llama": llama, "qwen3_moe": qwen3_moe, "whisper": whisper, "vit": vit}


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rows: list[tuple[str, ...]] = []
    for name in options.models:
        measured = measure(name, options.rounds)
        rows.append((name, *measured.values()))
        print(render(("ms (error)", *measured), [rows[-1]]), flush=True)
    print(render(("ms (error)", *measured), rows))


def measure(name: str, rounds: int) -> dict[str, str]:
    """Return minimum and error of each variant."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    narrow = deepcopy(module).eval().bfloat16()
    wide = deepcopy(narrow).float()  # the same weights
    variants = variants_of(narrow, wide, inputs)
    with torch.inference_mode():
        want = wide(*inputs).double()
        errors = {v.name: _error(v.run(), want) for v in variants}
        seconds: dict[str, list[float]] = {v.name: [] for v in variants}
        for _ in range(rounds):
            for variant in variants:
                begun = time.process_time()
                variant.run()
                seconds[variant.name].append(time.process_time() - begun)
    return {n: f"{min(took) * 1e3:.1f} ({errors[n]:.0e})" for n, took in seconds.items()}


def variants_of(narrow: First, wide: First, inputs: Inputs) -> list[Variant]:
    """Return torch's and our implementations of a module in bfloat16 and in float32."""
    halves = tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)
    stored = coreai_onnx.convert(wide, inputs)
    store_weights_as(stored.model, "bfloat16")
    fused = coreai_onnx.convert(narrow, halves).optimize(target="kernels")
    return [
        Variant("torch, float32", lambda: wide(*inputs)),
        Variant("torch, bfloat16", lambda: narrow(*halves)),
        Variant("float32", _ours(coreai_onnx.convert(wide, inputs), inputs)),
        Variant("bfloat16 weights", _ours(stored, inputs)),
        Variant("bfloat16, float32 products", _ours(coreai_onnx.convert(narrow, halves), halves)),
        Variant("bfloat16", _ours(fused, halves)),
    ]


def _ours(program: coreai_onnx.OnnxProgram, inputs: Inputs) -> Callable[[], Any]:
    session = Session(program, kernels=True, threads=1)
    return lambda: session.run(*inputs)


def _error(got: Any, want: torch.Tensor) -> float:
    first = (
        got
        if isinstance(got, torch.Tensor)
        # torch does not take numpy's bfloat16
        else torch.from_numpy(np.asarray(next(iter(got)), np.float32))
    )
    return float((first.double() - want).abs().max() / want.abs().max())


if __name__ == "__main__":
    main()
