"""The options of a quantization, which ``quantize``, ``convert`` and ``export`` share."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coreai_onnx.cli.options.numbers import integer, repeated, switch
from coreai_onnx.cli.options.tensors import read_text
from coreai_onnx.errors import CommandError, failures_as
from coreai_onnx.messages import printable
from coreai_onnx.model.files.new_files import file_fault
from coreai_onnx.program import OnnxProgram

_TEXTS = (
    *("group_size", "method", "scale_dtype", "activation_bits", "embeddings", "minimum_size"),
    *("calibration_method", "percentile", "workers"),
)
_FLAGS = ("symmetric", "activations", "convolutions")
_DATA = ("calibration", "evaluation")


def declare(parser: argparse.ArgumentParser, bits: int | None = None) -> None:
    """Declare the options.

    Args:
        parser: The parser.
        bits: The default of ``--bits``; without one, nothing is quantized by default.
    """
    group = parser.add_argument_group("quantization", "see docs/quantization.md")
    usual = "4 (default)" if bits else "4"
    more = "" if bits else "; store the weights of products and embeddings in so many bits"
    group.add_argument(
        "--bits", type=int, default=bits, help=f"size of a weight: 8, {usual}, 3, 2{more}"
    )
    group.add_argument(
        "--group-size",
        type=integer(0),
        metavar="N",
        help="neighbors that share a scale (default: 32); 0 for one scale per row",
    )
    group.add_argument(
        "--method", help="hqq (default), rtn or palette; with calibration data, gptq or awq"
    )
    group.add_argument(
        "--symmetric",
        action="store_true",
        help="without zero points, which take 8 bits per group",
    )
    group.add_argument("--scale-dtype", help="of the scales: float16 (default), float32")
    group.add_argument(
        "--activation-bits",
        type=int,
        help="8: round the inputs of products as well, when the model runs; 0 (default): do not; "
        "with --activations: 8 (default) or 16",
    )
    group.add_argument(
        "--activations",
        action="store_true",
        help="round inputs of products and convolutions to 8 bits as well; needs calibration data",
    )
    group.add_argument(
        "--workers",
        type=integer(1, 1024),
        metavar="N",
        help="threads that quantize (default: one for each core, up to 8)",
    )
    _declare_data(group)
    _declare_rules(group)


def _declare_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--calibration",
        type=Path,
        metavar="FOLDER",
        help="a folder of .npz files, or one such file, each with the inputs of a call by name; "
        "for a language model also a .txt file, which its tokenizer reads",
    )
    group.add_argument(
        "--evaluation",
        type=Path,
        metavar="FOLDER",
        help="as for --calibration: print how much the outputs change on these calls (default: on "
        "the first 4 calls of the calibration data)",
    )
    group.add_argument(
        "--calibration-method",
        help="range of an input with --activations: minmax (default), percentile or entropy",
    )
    group.add_argument(
        "--percentile",
        type=float,
        metavar="P",
        help="with percentile: percent of the values inside of each end (default: 99.99)",
    )
    group.add_argument("--layers", action="store_true", help="print all layers")


def _declare_rules(group: argparse._ArgumentGroup) -> None:
    repeated(
        group,
        "--rule",
        "PATTERN=BITS[:GROUP]",
        "other bits for modules or weights whose name matches a shell pattern: '*lm_head=8'",
    )
    repeated(group, "--skip", "PATTERN", "modules or weights that keep their dtype")
    switch(group, "--embeddings", "quantize embeddings (default: yes)")
    group.add_argument(
        "--convolutions", action="store_true", help="quantize weights of convolutions as well"
    )
    group.add_argument(
        "--minimum-size",
        type=integer(0),
        metavar="N",
        help="weights with fewer elements keep their dtype (default: 4096)",
    )


def chosen(options: argparse.Namespace, *, packed: bool = False) -> dict[str, Any] | None:
    """Return the arguments of `OnnxProgram.quantize`; None if nothing is to be quantized.

    Args:
        options: The parsed options.
        packed: Whether weights have few bits already, so that only their inputs can be rounded.

    Raises:
        CommandError: If a rule has another form, or options are given without ``--bits``.
        QuantizationError: If a value is out of range.
    """
    from coreai_onnx.quantization.options import rules_of

    values = vars(options)
    arguments = {name: values[name] for name in _TEXTS if values[name] is not None}
    # Only flags that are given: the others have the defaults of `OnnxProgram.quantize`.
    arguments |= {name: True for name in _FLAGS if values[name]}
    arguments |= {name: list(values[name]) for name in ("skip",) if values[name]}
    arguments |= {"rules": dict(map(_rule, options.rule))} if options.rule else {}
    data = {name: values[name] for name in _DATA if values[name] is not None}
    if options.bits is None:
        if unused := [*arguments, *data, *(["layers"] if options.layers else [])]:
            # A GGUF file has its codes already: only the activations of its products can be
            # rounded.
            if packed and unused == ["activation_bits"]:
                rules_of(bits=4, **arguments)
                return arguments
            name = {"rules": "rule"}.get(unused[0], unused[0]).replace("_", "-")
            raise CommandError(f"--{name} is for a quantization; give --bits 8, 4, 3 or 2 as well")
        return None
    # Only for its errors, so that they come before the model is loaded or exported.
    rules_of(bits=options.bits, **arguments, **data)
    calls = {
        name: read_text(path) if path.suffix == ".txt" else feeds(path, f"--{name}")
        for name, path in data.items()
    }
    return {"bits": options.bits, **arguments, **calls}


def print_reports(program: OnnxProgram, *, layers: bool) -> None:
    """Print the report of each entrypoint."""
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
    # From the right, because a pattern may have an equals sign.
    pattern, equals, value = text.rpartition("=")
    bits, colon, group = value.partition(":")
    if not (equals and bits.isdecimal() and (group.isdecimal() or not colon)):
        raise CommandError(f"--rule {text}: write PATTERN=BITS or PATTERN=BITS:GROUP, '*lm_head=8'")
    return pattern, {"bits": int(bits), **({"group_size": int(group)} if colon else {})}


def feeds(path: Path, option: str = "--calibration") -> Iterator[dict[str, np.ndarray]]:
    """Return the inputs of each call: the arrays of each ``.npz`` file, by the order of the names.

    Args:
        path: The folder, or one file.
        option: The option that names it, for errors.

    Raises:
        CommandError: There is no such file, or, when its call is next, it cannot be read.
    """
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    if not files:
        raise CommandError(f"{option} {path}: the folder has no .npz file")
    # Here and not in a generator, which would check when a call is asked for.
    for file in files:
        if fault := file_fault(file):
            raise CommandError(f"{option} {path}: cannot read {file}: {fault}")
    return (_call(file, f"{option} {path}") for file in files)


def _call(file: Path, option: str) -> dict[str, np.ndarray]:
    with failures_as(CommandError, f"{option}: cannot read {file}"):
        # A pickle can run any code when it is read.
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise CommandError(f"{option}: {file} is not an .npz file")
        with archive:
            return dict(archive)
