"""The forms in which an exported program may come, and a check of its composites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import coreai_onnx
from tests.lower.checking import Wrapped
from tests.support.tolerances import assert_close

FORMS = ("training", "own_table", "torchs_table")
"""As exported; decomposed with our table; decomposed with torch's."""


def check(
    function: Callable[..., Any],
    *args: torch.Tensor,
    form: str = "training",
    opset: int = 23,
    dynamic_shapes: Any = None,
    others: tuple[torch.Tensor, ...] = (),
) -> dict[str, int]:
    """Assert that a function gives through bodies what it gives in torch.

    Args:
        function: What to convert.
        *args: Its arguments.
        form: One of ``FORMS``.
        opset: Opset of the model.
        dynamic_shapes: As for ``torch.export.export``, one entry per argument.
        others: Arguments of other sizes, for the same model.

    Returns:
        Calls by composite.
    """
    shapes = None if dynamic_shapes is None else (tuple(dynamic_shapes),)
    program = torch.export.export(Wrapped(function), args, dynamic_shapes=shapes)
    if form != "training":
        table = coreai_onnx.get_decomp_table() if form == "own_table" else None
        program = program.run_decompositions(table)
    converter = coreai_onnx.TorchConverter().add_exported_program(program)
    converted = converter.to_onnx(opset_version=opset)
    for given in (args, *([others] if others else [])):
        (actual,) = converted.run(*given, kernels=False)
        assert_close(actual, function(*given))
    return {k.removeprefix("ai.coreai::"): v for k, v in converted.composites().items()}
