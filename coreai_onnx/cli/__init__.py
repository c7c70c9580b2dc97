"""The command line, ``coreai-onnx`` or ``python -m coreai_onnx``."""

from coreai_onnx.cli.command import main

__all__ = ["main"]
