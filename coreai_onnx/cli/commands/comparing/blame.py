"""``coreai-onnx blame``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coreai_onnx.cli.options.inputs import chosen_provider, declare_executions
from coreai_onnx.cli.options.output import chosen_place
from coreai_onnx.cli.options.subject import load_record
from coreai_onnx.runtime.sessions.session import Session

NAME = "blame"
DESCRIPTION = """\
find the nodes of a .onnx file that compute something else than torch

Runs every part of the file on torch's own values, with function bodies and with kernels (if built),
and prints the nodes that are wrong with the lines of Python that they come from. RECORD.pt2 is what
convert --record or program.save(path, record=...) wrote. The exit code is 1 if something is wrong.

  coreai-onnx blame model.onnx record.pt2
  coreai-onnx blame model.onnx record.pt2 --reproduce wrong --html wrong.html
  coreai-onnx blame model.onnx record.pt2 --provider webgpu
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("record", metavar="RECORD.pt2")
    declare_executions(parser)
    parser.add_argument(
        "--html", type=Path, metavar="FILE.html", help="also write a page with the graph by error"
    )
    parser.add_argument(
        "--reproduce",
        metavar="FOLDER",
        help="write a folder for each finding: model.onnx, its inputs, torch's outputs, run.py",
    )


def execute(options: argparse.Namespace) -> int:
    """Print the findings; return 1 if there are any."""
    from coreai_onnx.debugging.blaming.blame import blame

    html = chosen_place(options.html, ".html") if options.html else None
    provider = chosen_provider(options)
    # Reports a bad file or provider before torch is imported.
    Session(options.model, kernels=False, providers=provider)
    record = load_record(options.record)
    result = blame(options.model, record, kernels=options.kernels, provider=provider)
    print(result)
    if html is not None:
        print(f"wrote {result.to_html(html, f'Blame of {options.model}')}")
    if options.reproduce is not None:
        for folder in result.reproduce(options.reproduce):
            print(f"wrote {folder}")
    return 0 if result.clean else 1
