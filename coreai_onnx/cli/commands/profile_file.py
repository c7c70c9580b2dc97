"""``coreai-onnx profile``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from coreai_onnx.cli.options.inputs import (
    chosen_inputs,
    chosen_provider,
    declare_executions,
    declare_inputs,
    declare_threads,
)
from coreai_onnx.cli.options.numbers import integer
from coreai_onnx.cli.options.output import chosen_place
from coreai_onnx.debugging.profiling.profiles import profile
from coreai_onnx.errors import CommandError
from coreai_onnx.model.pages.graph_page import write_overlay
from coreai_onnx.runtime.profile.node_times import GROUPINGS, Profile
from coreai_onnx.runtime.sessions.session import Session

NAME = "profile"
DESCRIPTION = """\
print where the time of a .onnx file goes

Runs the file with function bodies and with kernels (if built), in turn, and prints the time by
operator, node, module or line of Python, with operations, bytes, and the share of what the machine
reaches. RECORD.pt2 is what convert --record wrote: its nodes are measured in torch too. Inputs that
are not given are random, or with a record its example inputs.

  coreai-onnx profile model.onnx --dim batch=4 --dim seq=128
  coreai-onnx profile model.onnx record.pt2 --by line --by module
  coreai-onnx profile model.onnx --html profile.html
  coreai-onnx profile model.onnx --provider webgpu
  coreai-onnx profile model.onnx --overlay times.json    # for Model Explorer
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    declare_runs(parser)
    parser.add_argument(
        "--by",
        action="append",
        choices=GROUPINGS,
        help="what to print, several times for several tables (default: operator and line)",
    )
    parser.add_argument(
        "--limit", type=integer(0), default=20, metavar="N", help="rows per table (0: all)"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE.html", help="also write a page with graph and table"
    )
    parser.add_argument(
        "--overlay",
        type=Path,
        metavar="FILE.json",
        help="also write the times as node data for Model Explorer",
    )


def declare_runs(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `measured`."""
    parser.add_argument("model", metavar="MODEL.onnx")
    parser.add_argument("record", metavar="RECORD.pt2", nargs="?")
    declare_inputs(parser)
    declare_threads(parser)
    declare_executions(parser)
    parser.add_argument(
        "--runs", type=integer(1), default=10, metavar="N", help="measured runs (default 10)"
    )


def execute(options: argparse.Namespace) -> int:
    """Print the tables and write the files."""
    html = chosen_place(options.html, ".html") if options.html else None
    overlay = chosen_place(options.overlay, ".json") if options.overlay else None
    times = measured(options)
    print("\n".join(times.facts))
    for grouping in options.by or ("operator", "line"):
        print(f"\n{times.table(grouping, options.limit or None)}")
    if html is not None:
        times.to_html(html, f"Profile of {options.model}")
        print(f"wrote {html}")
    if overlay is not None:
        write_overlay(overlay, times.model, times.columns()[0])
        print(f"wrote {overlay}")
    return 0


def measured(options: argparse.Namespace) -> Profile:
    """Return the profile that the options ask for.

    Raises:
        CommandError: If inputs are given beside a record, which has its own.
    """
    provider = chosen_provider(options)
    # Reports a bad file or provider before torch is imported.
    session = Session(options.model, kernels=False, providers=provider)
    reference: object = None
    inputs: dict[str, Any] | None = None
    if options.record is None:
        inputs = chosen_inputs(session, options)
    else:
        if options.input or options.dim:
            raise CommandError("--input and --dim are for a model without a record")
        from coreai_onnx.export.record import ExportRecord

        reference = ExportRecord.load(options.record)
    settings: dict[str, Any] = {"kernels": options.kernels, "threads": options.threads}
    settings["provider"] = provider
    return profile(options.model, inputs, reference, runs=options.runs, **settings)
