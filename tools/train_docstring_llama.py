#!/usr/bin/env python
"""Train the small language model of ``tests/models/docstring_llama``.

It is a Llama of 2.9 million parameters that writes docstrings. Its text is on every machine with
this project: the docstrings of Python's standard library, numpy and torch, and the language
reference in ``pydoc_data``. The docstrings of some modules are held out for perplexity.

    tools/train_docstring_llama.py [--steps 1200] [--output tests/models/docstring_llama]

One core with bfloat16 instructions takes 15 minutes, others three times as long. Seeds are fixed:
the same processor, Python and packages give the same weights.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from tqdm import trange

PLACE = Path(__file__).resolve().parent.parent / "tests" / "models" / "docstring_llama"
HELD_OUT = ("csv", "fractions", "heapq", "sched", "shutil", "statistics", "textwrap", "zipfile")
"""Modules of the standard library whose docstrings the model never sees."""
PACKAGES = ("numpy", "torch")
SKIPPED = {"site-packages", "test", "tests", "testing", "idle_test", "lib2to3"}
END = "<|endoftext|>"
SHORTEST_REPEAT = 40
"""Paragraphs of at least so many characters are taken once."""

CONTEXT, BATCH, VOCABULARY = 256, 16, 2048
LEARNING_RATE, WARMUP = 3e-3, 50
CONFIG: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


# ---------------------------------------------------------------------- the text
def documents() -> tuple[list[str], str]:
    """Return the texts to train on, one for each module or topic, and the held-out text."""
    seen: set[str] = set()
    standard = Path(sysconfig.get_path("stdlib"))
    held_out = [new_text(docstrings(standard / f"{name}.py"), seen) for name in HELD_OUT]
    found = [new_text([topics[name]], seen) for name in sorted(topics)]
    for root in (standard, *map(package_folder, PACKAGES)):
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root).parts
            private = root != standard and any(part.startswith("_") for part in parts[:-1])
            if not private and SKIPPED.isdisjoint(parts):
                found.append(new_text(docstrings(file), seen))
    return [text for text in found if text], "\n\n".join(held_out) + "\n"


def package_folder(name: str) -> Path:
    """Return the folder of an installed package."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def docstrings(file: Path) -> Iterator[str]:
    """Yield the docstrings of a file, in order of appearance."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # a few files of the standard library are not Python 3
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if text := ast.get_docstring(node):
            yield text


def new_text(texts: Iterator[str] | list[str], seen: set[str]) -> str:
    """Join the paragraphs of texts, without long ones that were there before."""
    kept = []
    for paragraph in "\n\n".join(texts).split("\n\n"):
        key = " ".join(paragraph.split())
        if key and key not in seen:
            kept.append(paragraph.rstrip())
            seen |= {key} if len(key) >= SHORTEST_REPEAT else set()
    return "\n\n".join(kept)


def trained_tokenizer(texts: list[str]) -> transformers.PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=END, eos_token=END, pad_token=END
    )


def token_ids(tokenizer: Any, texts: list[str]) -> torch.Tensor:
    """Return the tokens of texts, each with the end-of-text token before it."""
    encoded = tokenizer(texts)["input_ids"]
    return torch.tensor([token for row in encoded for token in (tokenizer.eos_token_id, *row)])


# ---------------------------------------------------------------------- the model
def train(model: Any, tokens: torch.Tensor, steps: int) -> None:
    """Train a model on random pieces of a text.

    Matrices of layers are trained with Muon, https://kellerjordan.github.io/posts/muon, the rest
    with AdamW. The learning rate rises for some steps, and then falls to 0 linearly.
    """
    inner = [p for n, p in model.named_parameters() if p.ndim == 2 and "layers." in n]
    outer = [p for n, p in model.named_parameters() if p.ndim != 2 or "layers." not in n]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(inner, LEARNING_RATE, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    random = torch.Generator().manual_seed(0)
    for step in (bar := trange(steps, mininterval=5)):
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH,), generator=random)
        pieces = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts])
        loss = losses(model, pieces).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = LEARNING_RATE * min(1, (step + 1) / WARMUP, (steps - step) / max(steps - WARMUP, 1))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        bar.set_postfix_str(f"loss {loss.item():.3f}", refresh=False)


def losses(model: Any, pieces: torch.Tensor) -> torch.Tensor:
    """Return the loss of each token but the first of each piece."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=pieces[:, :-1], use_cache=False).logits
    return cross_entropy(logits.float().flatten(0, 1), pieces[:, 1:].flatten(), reduction="none")


@torch.no_grad()
def perplexity(model: Any, tokens: torch.Tensor) -> float:
    """Return the perplexity of a text in windows of the context's length."""
    windows = [window[None] for window in tokens.split(CONTEXT) if len(window) > 1]
    return torch.cat([losses(model, window) for window in windows]).mean().exp().item()


def unigram_perplexity(trained: torch.Tensor, tokens: torch.Tensor) -> float:
    """Return the perplexity of a model that knows only how often each token occurs."""
    counts = torch.bincount(trained, minlength=VOCABULARY).double() + 1
    return (-(counts / counts.sum()).log()[tokens].mean()).exp().item()


def main() -> None:
    """Train, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--output", type=Path, default=PLACE)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    texts, held_out = documents()
    tokenizer = trained_tokenizer(texts)
    tokens, unseen = token_ids(tokenizer, texts), token_ids(tokenizer, [held_out])
    print(f"{sum(map(len, texts)):,} characters, {len(tokens):,} tokens; held out {len(unseen):,}")
    model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    train(model.train(), tokens, arguments.steps)
    model = model.bfloat16().eval()
    print(f"perplexity {perplexity(model, unseen):.2f}, training text "
          f"{perplexity(model, tokens[:len(unseen)]):.2f}, "
          f"unigrams {unigram_perplexity(tokens, unseen):.0f}")  # fmt: skip
    model.save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    (arguments.output / "held_out.txt").write_text(held_out, encoding="utf-8")


if __name__ == "__main__":
    main()
