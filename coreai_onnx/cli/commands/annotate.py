"""``coreai-onnx annotate``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coreai_onnx.cli.commands.profile_file import declare_runs, measured
from coreai_onnx.cli.options.inputs import chosen_provider
from coreai_onnx.model.pages.annotation import annotated
from coreai_onnx.model.provenance.source_lines import read_code
from coreai_onnx.runtime.profile.node_times import Profile

NAME = "annotate"
DESCRIPTION = """\
print the Python source of a .onnx file with the time of each line

The text of the lines is in the file; the source is not needed. With --source FOLDER, where the
source is, the lines around are printed too. With RECORD.pt2, which convert --record wrote, torch's
time is printed, and the error of the worst result of each line against float64, beside torch's own.

  coreai-onnx annotate model.onnx --dim seq=128
  coreai-onnx annotate model.onnx record.pt2 --source .
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    declare_runs(parser)
    parser.add_argument("--source", type=Path, metavar="FOLDER", help="where the Python files are")


def execute(options: argparse.Namespace) -> int:
    """Print the lines."""
    profile = measured(options)
    header, cells = _times(profile)
    if options.record is not None:
        empty, errors = [""] * len(header), _errors(options)
        cells = {
            line: [*cells.get(line, empty), *errors.get(line, ("", "", ""))]
            for line in dict.fromkeys([*cells, *errors])
        }
        header = [*header, "error", "torch's", ""]
    # Nodes without a source line have an empty key.
    cells.pop("", None)
    print("\n".join(profile.facts), end="\n\n")
    code = read_code(profile.model.metadata_props)
    print(annotated(cells, header, code, options.source))
    return 0


def _errors(options: argparse.Namespace) -> dict[str, tuple[str, str, str]]:
    """Return the error, torch's error and a mark for each line."""
    from coreai_onnx.debugging.blaming.blame import blame
    from coreai_onnx.debugging.blaming.error_report import line_errors
    from coreai_onnx.export.record import ExportRecord

    record, provider = ExportRecord.load(options.record), chosen_provider(options)
    blamed = blame(options.model, record, kernels=options.kernels, provider=provider)
    return {
        line: (f"{one.error:.1e}", f"{one.torch_error:.1e}", "" if one.ok else "wrong")
        for line, one in line_errors(blamed.model, blamed.differences).items()
    }


def _times(profile: Profile) -> tuple[list[str], dict[str, list[str]]]:
    """Return the titles of the times, and the times of each line."""
    names = [one.name for one in profile.executions]
    totals = profile.by("line")
    whole = sum(total.seconds.get(profile.main.name, 0.0) for total in totals) or 1.0
    cells = {}
    for total in totals:
        times = [f"{total.seconds[n] * 1e3:.3f}" if n in total.seconds else "" for n in names]
        share = total.seconds.get(profile.main.name, 0.0) / whole
        cells[total.where.source] = [*times, f"{share:.1%}"]
    return [*(f"{name} ms" for name in names), "share"], cells
