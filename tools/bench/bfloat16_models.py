"""Whole models in bfloat16 or float16 on the kernels, beside torch's own and our float32.

    python -m tools.bench.bfloat16_models
    python -m tools.bench.bfloat16_models --models llama vit --rounds 10
    python -m tools.bench.bfloat16_models --dtype float16
    python -m tools.bench.bfloat16_models --tokens 512 --batch 4 --variants torch kernels
    python -m tools.bench.bfloat16_models --threads 2

One thread, in CPU time of the process, or several, in wall time; all variants of a model take
turns. *kernels* is the file of the module in the dtype for the target `kernels`, *default* the one
for the default target, whose products of bfloat16 are in float32 between casts; *stored* is the
file in float32 of the same weights, which are stored in the dtype (`store_weights_as`). Errors are
the largest ones of the first output, relative to its largest magnitude, from the module in float32
with the same weights.
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
from coreai_onnx.messages import render
from coreai_onnx.passes.stored_weights import store_weights_as
from coreai_onnx.runtime.sessions.session import Session

Inputs = tuple[torch.Tensor, ...]
_PAUSE = 0.2
"""Seconds after which idle threads of the variant before do not spin any more."""
VOCABULARY = 4096
VARIANTS = ("torch, float32", "torch", "float32", "stored", "default", "kernels")


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


@dataclass(frozen=True)
class Options:
    """What is measured, and how."""

    dtype: torch.dtype
    variants: tuple[str, ...]
    batch: int
    tokens: int
    threads: int
    rounds: int

    def prompt(self, tokens: int | None = None) -> torch.Tensor:
        """Return prompts."""
        return torch.randint(0, VOCABULARY, (self.batch, tokens or self.tokens))

    def clock(self) -> float:
        """Return the time in seconds: of the process if it has one thread."""
        return time.process_time() if self.threads == 1 else time.perf_counter()


def bert(options: Options) -> tuple[First, Inputs]:
    """BERT base with 4 layers."""
    config = transformers.BertConfig(vocab_size=VOCABULARY, num_hidden_layers=4)
    return First(transformers.BertModel(config), ("input_ids",)), (options.prompt(),)


def llama(options: Options) -> tuple[First, Inputs]:
    """Llama with 4 layers, 16 heads of queries and 4 of keys."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=1024, intermediate_size=2816, num_hidden_layers=4,
        num_attention_heads=16, num_key_value_heads=4,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    return First(model, ("input_ids",), use_cache=False), (options.prompt(),)


def qwen3_moe(options: Options) -> tuple[First, Inputs]:
    """Qwen3-MoE with 4 layers, 2 of 8 experts for each token."""
    config = transformers.Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, head_dim=64, num_experts=8,
        num_experts_per_tok=2, moe_intermediate_size=768,
    )  # fmt: skip
    model = transformers.Qwen3MoeForCausalLM(config)
    return First(model, ("input_ids",), use_cache=False), (options.prompt(),)


def whisper(options: Options) -> tuple[First, Inputs]:
    """Whisper tiny, 400 frames of audio and 16 tokens."""
    config = transformers.WhisperConfig(vocab_size=VOCABULARY, max_source_positions=200)
    config.pad_token_id = config.bos_token_id = config.eos_token_id = 0
    config.decoder_start_token_id = 0
    model = First(
        transformers.WhisperModel(config), ("input_features", "decoder_input_ids"), use_cache=False
    )
    return model, (torch.randn(options.batch, config.num_mel_bins, 400), options.prompt(16))


def vit(options: Options) -> tuple[First, Inputs]:
    """ViT base with 4 layers."""
    model = transformers.ViTModel(transformers.ViTConfig(num_hidden_layers=4))
    return First(model, ("pixel_values",)), (torch.randn(options.batch, 3, 224, 224),)


MODELS = {"bert": bert, "llama": llama, "qwen3_moe": qwen3_moe, "whisper": whisper, "vit": vit}


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128, help="of texts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    given = vars(parser.parse_args())
    models, dtype = given.pop("models"), getattr(torch, given.pop("dtype"))
    options = Options(dtype=dtype, **given)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    rows: list[tuple[str, ...]] = []
    for name in models:
        measured = measure(name, options)
        rows.append((name, *measured.values()))
        print(render(("ms (error)", *measured), [rows[-1]]), flush=True)
    print(render(("ms (error)", *measured), rows))


def measure(name: str, options: Options) -> dict[str, str]:
    """Return minimum and error of each variant."""
    torch.manual_seed(0)
    module, inputs = MODELS[name](options)
    narrow = deepcopy(module).eval().to(options.dtype)
    wide = deepcopy(narrow).float()  # the same weights
    variants = variants_of(narrow, wide, inputs, options)
    with torch.inference_mode():
        want = wide(*inputs).double()
        errors = {v.name: _error(v.run(), want) for v in variants}
        seconds: dict[str, list[float]] = {v.name: [] for v in variants}
        for _ in range(options.rounds):
            for variant in variants:
                if options.threads > 1:
                    time.sleep(_PAUSE)
                    variant.run()  # its threads had gone to sleep
                begun = options.clock()
                variant.run()
                seconds[variant.name].append(options.clock() - begun)
    return {n: f"{min(took) * 1e3:.1f} ({errors[n]:.0e})" for n, took in seconds.items()}


def variants_of(narrow: First, wide: First, inputs: Inputs, options: Options) -> list[Variant]:
    """Return torch's and our implementations of a module in a narrow dtype and in float32."""
    halves = tuple(x.to(options.dtype) if x.is_floating_point() else x for x in inputs)

    def ours(module: First, values: Inputs, target: str = "", store: str = "") -> Callable[[], Any]:
        program = coreai_onnx.convert(module, values)
        if store:
            store_weights_as(program.model, store)
        if target:
            program.optimize(target=target)
        session = Session(program, kernels=True, threads=options.threads)
        return lambda: session.run(*values)

    stored = str(options.dtype).removeprefix("torch.")
    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "torch, float32": lambda: lambda: wide(*inputs),
        "torch": lambda: lambda: narrow(*halves),
        "float32": lambda: ours(wide, inputs),
        "stored": lambda: ours(wide, inputs, store=stored),
        "default": lambda: ours(narrow, halves),
        "kernels": lambda: ours(narrow, halves, target="kernels"),
    }
    return [Variant(name, makers[name]()) for name in options.variants]


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
