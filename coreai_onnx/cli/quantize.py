"""``coreai-onnx quantize``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coreai_onnx.cli import output
from coreai_onnx.cli.numbers import integer
from coreai_onnx.cli.progress import stages_shown
from coreai_onnx.errors import CommandError, failures_as
from coreai_onnx.model.metadata import TARGET
from coreai_onnx.printable import printable
from coreai_onnx.program import OnnxProgram
from coreai_onnx.stages import begin

NAME = "quantize"
DESCRIPTION = """\
store the weights of a .onnx file in 8, 4, 3 or 2 bits

Weights of matrix products and embeddings become codes with a scale for each group of neighbors
(docs/quantization.md). Prints sizes and the layers with the largest rounding errors.

  coreai-onnx quantize model.onnx -o model_int4.onnx --bits 4 --group-size 32
  coreai-onnx quantize model.onnx -o model_int4.onnx --method gptq --calibration inputs
  coreai-onnx quantize model.onnx -o model_int4.onnx --rule "*lm_head=8" --skip "*.layers.0.*"
  coreai-onnx quantize model.onnx -o model_int4.onnx --target contrib
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL.onnx")
    output.declare_file(parser)
    parser.add_argument(
        "--bits", type=int, default=4, help="size of a weight: 8, 4 (default), 3, 2"
    )
    parser.add_argument(
        "--group-size",
        type=integer(0),
        default=32,
        metavar="N",
        help="neighbors that share a scale (default: 32); 0 for one scale per row",
    )
    parser.add_argument(
        "--method",
        default="hqq",
        help="hqq (default), rtn or palette; with calibration data, gptq or awq",
    )
    parser.add_argument(
        "--symmetric",
        action="store_true",
        help="without zero points, which take 8 bits per group",
    )
    parser.add_argument(
        "--scale-dtype", default="float16", help="of the scales: float16 (default), float32"
    )
    parser.add_argument(
        "--activation-bits",
        type=int,
        default=0,
        help="8: round the inputs of products as well, when the model runs; 0 (default): do not",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FOLDER",
        help="a folder of .npz files, or one such file, each with the inputs of a call by name",
    )
    parser.add_argument(
        "--activations",
        action="store_true",
        help="round inputs of products and convolutions to 8 bits as well; needs calibration data",
    )
    _declare_rules(parser)


def _declare_rules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="PATTERN=BITS[:GROUP]",
        help="other bits for modules or weights whose name matches a shell pattern: '*lm_head=8'",
    )
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="PATTERN",
        help="modules or weights that keep their dtype",
    )
    parser.add_argument(
        "--embeddings",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="quantize embeddings (default: yes)",
    )
    parser.add_argument(
        "--minimum-size",
        type=integer(0),
        default=4096,
        metavar="N",
        help="weights with fewer elements keep their dtype (default: 4096)",
    )
    parser.add_argument("--layers", action="store_true", help="print all layers")
    parser.add_argument(
        "--target",
        choices=output.TARGETS,
        help="run the graph passes for this target afterwards (default: if the file was optimized "
        "for contrib, for contrib)",
    )


def execute(options: argparse.Namespace) -> int:
    """Quantize, save, and print the report."""
    options.output = output.chosen_place(options.output)
    rules = dict(map(_rule, options.rule))
    with stages_shown():
        begin("load")
        program = OnnxProgram.load(options.model)
        program.quantize(
            options.bits,
            options.group_size,
            method=options.method,
            symmetric=options.symmetric,
            scale_dtype=options.scale_dtype,
            activation_bits=options.activation_bits,
            calibration=None if options.calibration is None else feeds(options.calibration),
            rules=rules,
            skip=options.skip,
            embeddings=options.embeddings,
            minimum_size=options.minimum_size,
            activations=options.activations,
        )
        target = options.target or _target_of(program)
        if target:
            program.optimize(target=target)
        _print_reports(program, layers=options.layers)
        output.save(program, options)
    return 0


def _target_of(program: OnnxProgram) -> Any:
    """Return the target whose passes also rewrite products with few-bit weights."""
    target = next(iter(program.models.values())).metadata_props.get(TARGET)
    return target if target == "contrib" else None


def _print_reports(program: OnnxProgram, *, layers: bool) -> None:
    for name, report in program.quantization_reports.items():
        if len(program.entrypoints) > 1:
            print(printable(f"entrypoint {name}"))
        print(f"{report}\n")
        if layers:
            print(f"all layers:\n{report.table()}\n")


def _rule(text: str) -> tuple[str, dict[str, int]]:
    """Return a pattern with bits, and perhaps a group size.

    Raises:
        CommandError: The text has another form.
    """
    pattern, equals, value = text.rpartition("=")
    bits, colon, group = value.partition(":")
    if not (equals and bits.isdecimal() and (group.isdecimal() or not colon)):
        raise CommandError(f"--rule {text}: write PATTERN=BITS or PATTERN=BITS:GROUP, '*lm_head=8'")
    return pattern, {"bits": int(bits), **({"group_size": int(group)} if colon else {})}


def feeds(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """Yield the inputs of each call: the arrays of each ``.npz`` file, in the order of their names.

    Raises:
        CommandError: There is no such file, or it cannot be read.
    """
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise CommandError(f"--calibration {path}: the folder has no .npz file")
    for file in files:
        with failures_as(CommandError, f"--calibration {path}: cannot read {file}"):
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise CommandError(f"--calibration {path}: {file} is not an .npz file")
            with archive:
                call = dict(archive)
        yield call
