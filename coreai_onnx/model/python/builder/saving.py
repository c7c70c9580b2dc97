"""Writing a built model as an ``.onnx`` file, and the command of a written package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from onnxscript import ir

from .errors import BuildError
from .model import Model

_LIMIT = 3 << 29
"""Bytes of weights above which they go to a file of their own: a protobuf holds 2 GiB."""


def save(model: ir.Model, path: Path, *, external_data: bool | None = None) -> None:
    """Write a model; a file that is there is replaced when the new one is complete.

    Args:
        model: The model.
        path: The file.
        external_data: Whether weights go to a file beside it; None does above 1.5 GiB.
    """
    tensors = [
        v.const_value for v in model.graph.initializers.values() if v.const_value
    ]
    if external_data is None:
        external_data = sum(tensor.nbytes for tensor in tensors) > _LIMIT
    temporary = path.with_name(f".{path.name}.new")
    try:
        if external_data:
            ir.save(model, temporary, external_data=f"{path.name}.data")
        else:
            # onnx_ir would write references to the safetensors file, which ONNX cannot
            # read.
            ir.external_data.load_to_model(model)
            ir.save(model, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def command(models: Mapping[str, Model], arguments: list[str] | None = None) -> int:
    """Run ``python -m package build model.onnx``.

    Returns:
        0, or 2 if the model cannot be built.
    """
    parser = argparse.ArgumentParser(
        description="Build the ONNX model of this package."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="write a .onnx file")
    build.add_argument("path", type=Path, metavar="MODEL.onnx")
    build.add_argument(
        "--external-data",
        action="store_true",
        default=None,
        help="weights in a file beside it",
    )
    options = parser.parse_args(arguments)
    path: Path = options.path
    try:
        for name, model in models.items():
            several = len(models) > 1
            file = (
                path.with_name(f"{path.stem}.{name}{path.suffix}") if several else path
            )
            save(model.build(), file, external_data=options.external_data)
            print(file)
    except (BuildError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
