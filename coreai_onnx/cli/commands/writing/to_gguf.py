"""``coreai-onnx to-gguf``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coreai_onnx.cli.options.numbers import stages_shown
from coreai_onnx.errors import CommandError
from coreai_onnx.messages import printable, render, size_text
from coreai_onnx.model.files.program_files import MODEL_FILE

NAME = "to-gguf"
DESCRIPTION = """\
write an exported language model as a GGUF file, for llama.cpp

SOURCE is a folder that coreai-onnx export wrote, with the target kernels or onnxruntime, or a
.onnx file in one. Codes of few bits stay what they are (docs/gguf.md).

  coreai-onnx export my_llama -o my_llama_int4 --bits 4 --group-size 32 --symmetric
  coreai-onnx to-gguf my_llama_int4 -o my_llama_q4_0.gguf
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("source", metavar="SOURCE", type=Path)
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="OUTPUT.gguf")
    parser.add_argument(
        "--otherwise",
        choices=("float16", "bfloat16", "float32"),
        help="the dtype of weights that no type of GGUF holds exactly (default: they are refused)",
    )
    parser.add_argument(
        "--round-minimums",
        action="store_true",
        help="round the products of scales and zero points to float16, which Q4_1 has",
    )


def execute(options: argparse.Namespace) -> int:
    """Write the file and print the types of its tensors."""
    if options.output.suffix != ".gguf":
        raise CommandError(f"--output must be a .gguf file, got {str(options.output)!r}")
    file = options.source / MODEL_FILE if options.source.is_dir() else options.source
    with stages_shown():
        try:
            from coreai_onnx.huggingface.checkpoints.gguf.writing import write_gguf
        except ModuleNotFoundError as error:
            if error.name != "gguf":
                raise
            raise CommandError("the gguf package is not installed: pip install gguf") from error
        from coreai_onnx.huggingface.sources import CONFIG, read_config

        tensors = write_gguf(
            file,
            read_config(file.parent / CONFIG),
            options.output,
            otherwise=options.otherwise,
            round_minimums=options.round_minimums,
        )
    rows = []
    for kind in dict.fromkeys(tensor.type for tensor in tensors):
        sizes = [tensor.size for tensor in tensors if tensor.type == kind]
        rows.append((kind.name, len(sizes), size_text(sum(sizes))))
    print(f"{printable(str(options.output))}\n{render(('type', 'tensors', 'size'), rows)}")
    return 0
