"""Quantizes the programs of an export together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coreai_onnx.program import OnnxProgram
from coreai_onnx.quantization.options import rules_of
from coreai_onnx.targets.opsets import DEFAULT_TARGET, Target

Arguments = Mapping[str, Any]
"""The arguments of `OnnxProgram.quantize`."""


def check_arguments(arguments: Arguments | None) -> None:
    """Check the arguments of a quantization without a program.

    Raises:
        QuantizationError: One is unknown or out of range.
    """
    if arguments is not None:
        # As the default of ``quantize``, which is not called here.
        rules_of(**{"bits": 4, **arguments})


def first_target(target: Target, arguments: Arguments | None) -> Target:
    """Return the target to optimize for before a quantization.

    Passes for a target may merge layers that the rules of a quantization name.
    """
    return target if arguments is None else DEFAULT_TARGET


def quantize_programs(
    programs: Mapping[str, OnnxProgram], arguments: Arguments | None, target: Target
) -> None:
    """Quantize programs in place, and optimize them for a target.

    A pattern of a rule matches a weight of any program. A weight that programs share is quantized
    once.

    Args:
        programs: Programs of one entrypoint, by the names of their files.
        arguments: The arguments of the quantization; None does not quantize.
        target: What will run the files.

    Raises:
        QuantizationError: The programs cannot be quantized so; they are unchanged.
        StagingError: There is calibration data for several programs.
    """
    if arguments is None:
        return
    # One program of several entrypoints: rules may match in any of them, and weights are shared.
    whole = OnnxProgram({name: program.model for name, program in programs.items()})
    whole.quantize(**arguments)
    for name, program in programs.items():
        entrypoint = program.entrypoints[0]
        program.quantization_reports = {entrypoint: whole.quantization_reports[name]}
        # Only now: products must be plain until the rules have chosen.
        program.optimize(target=target)
