"""``coreai-onnx quantize``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from coreai_onnx.cli.options import output, quantization
from coreai_onnx.cli.options.numbers import stages_shown
from coreai_onnx.cli.options.tensors import read_text
from coreai_onnx.messages import begin_stage
from coreai_onnx.model.metadata import TARGET
from coreai_onnx.program import OnnxProgram
from coreai_onnx.targets.opsets import REWRITE_FEW_BITS, TARGETS

NAME = "quantize"
DESCRIPTION = """\
store the weights of a .onnx file in 8, 4, 3 or 2 bits

Weights of matrix products and embeddings become codes with a scale for each group of neighbors
(docs/quantization.md). Prints sizes, the change of the outputs, and the layers with the largest
rounding errors.

  coreai-onnx quantize model.onnx -o model_int4.onnx --bits 4 --group-size 32
  coreai-onnx quantize model.onnx -o model_int4.onnx --method gptq --calibration inputs
  coreai-onnx quantize my_llama_onnx/model.onnx -o int4.onnx --method gptq --calibration text.txt
  coreai-onnx quantize model.onnx -o model_int4.onnx --rule "*lm_head=8" --skip "*.layers.0.*"
  coreai-onnx quantize model.onnx -o model_int4.onnx --target contrib
  coreai-onnx quantize my_llama_onnx/model.onnx -o model_int4.onnx --perplexity held_out.txt
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    output.declare_file(parser)
    quantization.declare(parser, bits=4)
    parser.add_argument(
        "--perplexity",
        type=Path,
        metavar="TEXT",
        help="print the perplexity of a text before and after; MODEL.onnx is in a folder that "
        "coreai-onnx export wrote",
    )
    parser.add_argument(
        "--target",
        choices=TARGETS,
        help="run the graph passes for this target afterwards (default: if the file was optimized "
        "for contrib, for contrib)",
    )


def execute(options: argparse.Namespace) -> int:
    """Quantize, save, and print the report."""
    options.output = output.chosen_place(options.output)
    with stages_shown():
        arguments = quantization.chosen(options)
        assert arguments is not None  # --bits has a default
        if options.perplexity is not None:
            arguments["metrics"] = {"perplexity": _perplexity(options)}
        for name in ("calibration", "evaluation"):
            # Other options hold no texts: arrays come as iterators.
            if isinstance(arguments.get(name), str):
                arguments[name] = _calls(options.model, arguments[name])
        begin_stage("load")
        program = OnnxProgram.load(options.model)
        program.quantize(**arguments)
        target = options.target or _target_of(program)
        if target:
            program.optimize(target=target)
        quantization.print_reports(program, layers=options.layers)
        output.save(program, options)
    return 0


def _calls(model: str, text: str) -> Any:
    """Return the calls in which a file of an exported folder reads a text."""
    from coreai_onnx.huggingface.quantizing import calls_of_file

    return calls_of_file(model, text)


def _target_of(program: OnnxProgram) -> Any:
    """Return the program's target if its passes rewrite products with few-bit weights."""
    target = next(iter(program.models.values())).metadata_props.get(TARGET)
    return target if target in REWRITE_FEW_BITS else None


def _perplexity(options: argparse.Namespace) -> Callable[[OnnxProgram], float]:
    """Return a function that computes the perplexity of a program with the folder's tokenizer.

    Raises:
        CommandError: If the text cannot be read.
        GenerationError: If the folder is not that of an exported language model.
    """
    text = read_text(options.perplexity)
    from coreai_onnx.huggingface.generation import LanguageModel, perplexity

    opened = LanguageModel.open(Path(options.model).parent)
    return lambda program: perplexity(replace(opened, session=program.session()), text)
