"""``coreai-onnx ops-path``."""

from __future__ import annotations

import argparse

from coreai_onnx.runtime.libraries.library import ops_library_path

NAME = "ops-path"
DESCRIPTION = """\
print the path of the kernel library

An app in any language registers it with its onnxruntime session:
  Python   options.register_custom_ops_library(path)
  C++      session_options.RegisterCustomOpsLibrary(path)
  C#       options.RegisterCustomOpLibrary(path)
Without it the same .onnx runs on its function bodies.
"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare no options."""
    del parser


def execute(options: argparse.Namespace) -> int:
    """Print the path."""
    del options
    print(ops_library_path())
    return 0
