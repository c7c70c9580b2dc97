"""``coreai-onnx package``."""

from __future__ import annotations

import argparse
from pathlib import Path

from coreai_onnx.cli.options.inputs import (
    chosen_provider,
    declare_kernels,
    declare_provider,
    declare_threads,
)
from coreai_onnx.cli.options.numbers import integer, repeated
from coreai_onnx.messages import printable, size_text
from coreai_onnx.runtime.deployment.model_packages import DEFAULT, VARIANTS
from coreai_onnx.scale import READERS, package

NAME = "package"
DESCRIPTION = """\
write a .onnx file as a package for Triton, KServe, MLflow or onnxruntime

MODEL is a .onnx file, or a folder of coreai-onnx export. The folder of the output is new; it has
the file with its data files, the kernel library where the server needs it, and what describes them
(docs/packaging.md).

  coreai-onnx package minilm_onnx --for triton -o models --served-from /models --threads 2
  coreai-onnx package minilm_onnx --for kserve -o minilm_server
  coreai-onnx package minilm_onnx --for mlflow -o minilm_mlflow --batch-size 64
  coreai-onnx package model.onnx --for onnxruntime -o model_package --variant stock --variant webgpu
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("model", metavar="MODEL", type=Path)
    parser.add_argument(
        "--for", dest="reader", required=True, choices=READERS, help="what reads it"
    )
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FOLDER")
    parser.add_argument(
        "--name", help="the name of the model (default: that of the file or folder)"
    )
    parser.add_argument(
        "--batch-size",
        type=integer(1),
        metavar="ROWS",
        help="rows of a run, to which Triton joins requests and MLflow splits tables",
    )
    parser.add_argument(
        "--served-from",
        metavar="PATH",
        help="where Triton's server sees the folder (default: where it is written)",
    )
    repeated(
        parser,
        "--variant",
        "NAME",
        f"a variant for onnxruntime: {', '.join(VARIANTS)} (default: {', '.join(DEFAULT)}); may be "
        "repeated",
    )
    declare_kernels(parser)
    declare_threads(parser)
    declare_provider(parser)


def execute(options: argparse.Namespace) -> int:
    """Write the package and print its files."""
    settings = {
        "kernels": options.kernels,
        "threads": options.threads,
        "provider": chosen_provider(options),
    }
    folder = package(
        options.model,
        options.output,
        options.reader,
        name=options.name,
        batch_size=options.batch_size,
        served_from=options.served_from,
        variants=options.variant or None,
        **settings,
    )
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"wrote {printable(str(file))} ({size_text(file.stat().st_size)})")
    return 0
