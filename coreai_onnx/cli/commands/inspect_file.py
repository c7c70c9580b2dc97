"""``coreai-onnx inspect``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coreai_onnx.cli.options.inputs import chosen_provider, declare_provider
from coreai_onnx.debugging.diff.inspection import histogram, inspect_model
from coreai_onnx.debugging.diff.provider_gaps import provider_gaps

NAME = "inspect"
DESCRIPTION = """\
print the contents of a .onnx file

Prints files and sizes, inputs, states and outputs with dtypes and dims, composites with the number
of calls, operators, functions and metadata. Weights are not loaded.

Of a config.json of transformers, it prints the parameters of the model.

  coreai-onnx inspect model.onnx
  coreai-onnx inspect my_llama/config.json
  coreai-onnx inspect model.onnx --nodes
  coreai-onnx inspect model.onnx --histogram
  coreai-onnx inspect before.onnx --histogram after.onnx
  coreai-onnx inspect model.onnx --provider webgpu
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx", help="a .onnx file or a config.json")
    parser.add_argument(
        "--nodes", action="store_true", help="print the nodes, with the lines of Python"
    )
    parser.add_argument(
        "--histogram",
        nargs="?",
        const="",
        metavar="OTHER.onnx",
        help="only count operators, composites as one each; beside those of another file",
    )
    declare_provider(
        parser, "only list the nodes that an execution provider leaves to the CPU, and why"
    )


def execute(options: argparse.Namespace) -> int:
    """Print the inspection, the nodes, the histogram, or the nodes on the CPU."""
    provider = chosen_provider(options)
    if options.model.endswith(".json"):
        from coreai_onnx.huggingface.sources import structure

        print(structure(Path(options.model)))
    elif provider is not None:
        print(provider_gaps(options.model, provider))
    elif options.nodes:
        print(inspect_model(options.model).nodes())
    elif options.histogram is None:
        print(inspect_model(options.model))
    else:
        # Without a second file, the option holds an empty text.
        print(histogram([options.model, *filter(None, [options.histogram])]))
    return 0
