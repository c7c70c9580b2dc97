"""Options that ``convert`` and ``optimize`` share: passes, target, and the files they write."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from coreai_onnx.cli.options.numbers import switch
from coreai_onnx.cli.options.subject import load_object
from coreai_onnx.errors import CommandError
from coreai_onnx.messages import printable, size_text
from coreai_onnx.model.provenance.debug_info import LEVELS
from coreai_onnx.program import OnnxProgram
from coreai_onnx.targets.opsets import DEFAULT_TARGET, PORTABLE_OPSET, TARGETS, Target

if TYPE_CHECKING:
    from coreai_onnx.model.checks.violations import Verifier
    from coreai_onnx.passes import Pass


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    declare_file(parser)
    parser.add_argument(
        "--target",
        choices=TARGETS,
        default=DEFAULT_TARGET,
        help="what will run the file (docs/passes.md); portable is opset "
        f"{PORTABLE_OPSET} without functions",
    )
    declare_minimum(parser)
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="write a file for session(deterministic=True); needs --target kernels",
    )
    parser.add_argument(
        "--float32-tiles",
        action="store_true",
        help="write a file for session(float32_tiles=True); needs --target kernels",
    )
    parser.add_argument(
        "--passes",
        metavar="NAME,...",
        help="graph passes to run instead of the target's, in this order: names from "
        "docs/passes.md, 'default' for the target's, or your own passes as pkg.module:name",
    )
    parser.add_argument(
        "--near-misses",
        action="store_true",
        help="also print where a graph pass nearly matched, and why it did not rewrite",
    )


def declare_minimum(parser: argparse.ArgumentParser) -> None:
    """Declare the oldest onnxruntime."""
    parser.add_argument(
        "--minimum-onnxruntime",
        metavar="VERSION",
        help="the oldest onnxruntime that must be able to run the file, 1.20: selects the opset of "
        "a conversion, and the contrib ops that --target contrib may use",
    )


def declare_file(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the file that is written."""
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="OUTPUT.onnx")
    parser.add_argument(
        "--debug-info",
        choices=LEVELS,
        help="debug information of nodes: on each node, in a table (default), or none",
    )
    declare_external_data(parser)


def declare_external_data(parser: argparse.ArgumentParser) -> None:
    """Declare the option of where the weights are stored."""
    switch(
        parser,
        "--external-data",
        "store weights in a data file beside the model (default: above 1.5 GiB)",
    )


def chosen_place(path: Path, suffix: str = ".onnx") -> Path:
    """Return the path to write to, after checking it, so that errors come before the work.

    The suffix is added to a name without one, with a note on stderr. A path that is not a regular
    file, such as ``/dev/null``, is returned unchanged.

    Args:
        path: The path that was given.
        suffix: The required suffix.

    Raises:
        CommandError: If the folder does not exist, the path is a folder, or it has another suffix.
    """
    if path.is_dir():
        raise CommandError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise CommandError(f"cannot write {path}: there is no folder {path.parent}")
    special = path.exists() and not path.is_file()
    if path.suffix.lower() == suffix or special:
        return path
    complete = path.with_name(f"{path.name}{suffix}")
    if path.suffix:
        raise CommandError(
            f"cannot write {path}: the name must end in {suffix}, as {complete} does"
        )
    print(f"note: {path} has no suffix; the file is {complete}", file=sys.stderr)
    # The complete name may be that of a folder.
    return chosen_place(complete, suffix)


def optimize(
    program: OnnxProgram, options: argparse.Namespace, verify: Verifier | None = None
) -> None:
    """Run the chosen passes, verify each if there is a verifier, and print their report."""
    program.optimize(
        _passes(options.passes, options.target),
        target=options.target,
        minimum_onnxruntime=options.minimum_onnxruntime,
        verify=verify,
        deterministic=options.deterministic,
        float32_tiles=options.float32_tiles,
    )
    for name, report in program.pass_reports.items():
        print(
            report if len(program.entrypoints) == 1 else f"entrypoint {printable(name)}, {report}"
        )
        if options.near_misses and report.near_misses:
            print(f"near misses:\n{report.near_miss_table()}")
    print()


def save(program: OnnxProgram, options: argparse.Namespace) -> None:
    """Write the program and print the files."""
    files = program.save(
        options.output, external_data=options.external_data, debug_info=options.debug_info
    )
    for file in files:
        print(f"wrote {printable(str(file))} ({size_text(file.stat().st_size)})")


def _passes(text: str | None, target: Target) -> list[Pass] | None:
    """Return the passes of a comma-separated list; None for those of the target.

    Raises:
        CommandError: If a pass is unknown.
    """
    if text is None:
        return None
    from coreai_onnx.passes import CONTRIB, LAYOUT, ORDER, passes_for
    from coreai_onnx.passes.runner import name_of

    by_name = {name_of(one): one for one in (*ORDER, *LAYOUT, *CONTRIB)}
    chosen: list[Pass] = []
    for name in filter(None, (word.strip() for word in text.split(","))):
        if name == "default":
            chosen += passes_for(target)
        elif ":" in name:
            chosen.append(_own_pass(name))
        elif name in by_name:
            chosen.append(by_name[name])
        else:
            raise CommandError(
                f"--passes {name}: there is no such pass\n  there are {', '.join(sorted(by_name))}"
            )
    if not chosen:
        raise CommandError(
            f"--passes {text!r} names no pass; to run none, use convert --no-optimize"
        )
    return chosen


def _own_pass(name: str) -> Pass:
    function = load_object(name)
    if not callable(function) or isinstance(function, type):
        raise CommandError(
            f"--passes {name}: a pass is a function of a graph and a Why, "
            f"not a {type(function).__name__}"
        )
    return cast("Pass", function)
