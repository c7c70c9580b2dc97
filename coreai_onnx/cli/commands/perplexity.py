"""``coreai-onnx perplexity``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coreai_onnx.cli.options.inputs import chosen_provider, declare_kernels, declare_provider
from coreai_onnx.cli.options.numbers import integer
from coreai_onnx.cli.options.tensors import read_text

NAME = "perplexity"
DESCRIPTION = """\
print the perplexity of a text for an exported language model

FOLDER is what coreai-onnx export wrote, with a tokenizer; TEXT is a file in UTF-8. The smaller the
number, the better the model predicts the text (docs/language_models.md).

  coreai-onnx perplexity my_llama_onnx held_out.txt
  coreai-onnx perplexity my_llama_onnx held_out.txt --window 512 --stride 128
  coreai-onnx perplexity my_llama_onnx held_out.txt --provider webgpu
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("text", metavar="TEXT", type=Path)
    parser.add_argument(
        "--window",
        type=integer(2),
        metavar="TOKENS",
        help="tokens in one call (default: the context of the model, at most 1024)",
    )
    parser.add_argument(
        "--stride",
        type=integer(1),
        metavar="TOKENS",
        help="how much further each window begins (default: half a window)",
    )
    declare_kernels(parser)
    declare_provider(parser)


def execute(options: argparse.Namespace) -> int:
    """Print the perplexity."""
    text = read_text(options.text)
    from coreai_onnx.huggingface.generation import perplexity

    settings = {name: getattr(options, name) for name in ("window", "stride", "kernels")}
    result = perplexity(options.folder, text, provider=chosen_provider(options), **settings)
    print(f"{result:.4f}")
    return 0
