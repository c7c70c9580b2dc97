"""Written packages for tests: round trips, and model files of a few lines."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx_ir as ir

from coreai_onnx import OnnxProgram, from_python
from coreai_onnx.debugging.diff.model_diff import diff_models
from coreai_onnx.model.python.package import read_package, write_frame
from coreai_onnx.model.python.weights_file import write_weights

HEAD = """from onnxscript import BOOL, FLOAT, FLOAT16, INT64
from ._builder import Container, Model, Opset, op, tensor, typed
model = Model(__file__, opsets={"": 23, "test": 1})
weights = model.weights
"""
"""First four lines of a model file: the first line of what follows is line 5."""


def rebuilt(program: OnnxProgram | ir.Model, folder: Path) -> OnnxProgram:
    """Write a program as Python, build it again and hold it to the first, weights included."""
    if isinstance(program, ir.Model):
        program = OnnxProgram({"main": program})
    again = from_python(program.to_python(folder / "written"))
    diff = diff_models(program, again)
    assert diff.same, str(diff)
    return again


def source(model: ir.Model, folder: Path) -> str:
    """Return the model file of a model, which builds the same model."""
    rebuilt(model, folder)
    return (folder / "written" / "model.py").read_text()


def built(text: str, folder: Path, weights: Mapping[str, np.ndarray] | None = None) -> ir.Model:
    """Build the model of a model file, given without its first lines (see ``HEAD``)."""
    return read_package(written(text, folder, weights))["main"]


def written(text: str, folder: Path, weights: Mapping[str, np.ndarray] | None = None) -> Path:
    """Write the package of a model file, given without its first lines (see ``HEAD``)."""
    package = folder / "edited"
    package.mkdir(exist_ok=True)
    if not (package / "_builder").exists():
        write_frame(package, {"main": "model"})
    (package / "model.py").write_text(HEAD + text)
    with (package / "model.safetensors").open("wb") as file:
        write_weights(file, {name: ir.Tensor(array) for name, array in (weights or {}).items()})
    return package


def imported_file(path: Path) -> ModuleType:
    """Import a single file anew."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[path.stem]
    return module
