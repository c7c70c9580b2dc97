"""Runs a model in the onnxruntime of the Python that executes this file.

That Python needs numpy and onnxruntime only, of any version; it does not import ``coreai_onnx``.
Without an argument, the file prints the version of onnxruntime. The argument is a folder with
``job.json``, ``{"model": path, "inputs": [[name, element type or 0], …]}``, and ``inputs.npz``;
it receives ``outputs.json``, ``[[name, "tensor(float)"], …]``, and ``outputs.npz``. Arrays are
named by their positions; those of types that numpy does not have are raw integers.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
from pathlib import Path
from typing import Any

RAW = {"tensor(bfloat16)": 2}
"""Bytes per element of the types that numpy does not have; those of float8 follow from the name."""


def main(arguments: list[str]) -> None:
    """Print the version, or run the model of a folder."""
    try:
        # Not above, so that a Python without them gives one line of text instead of a traceback.
        import numpy as np
        import onnxruntime as ort
    except ImportError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    if not arguments:
        sys.stdout.write(ort.__version__)
        return
    folder = Path(arguments[0])
    job = json.loads((folder / "job.json").read_text("utf-8"))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    with np.load(folder / "inputs.npz") as arrays:
        inputs = [
            (name, arrays[str(i)], element) for i, (name, element) in enumerate(job["inputs"])
        ]
    feeds = {name: _value(ort, array, element) for name, array, element in inputs}
    names = [node.name for node in session.get_outputs()]
    values = session.run_with_ort_values(names, feeds, None)
    np.savez(folder / "outputs.npz", **{str(i): _array(np, v) for i, v in enumerate(values)})
    types = [[name, value.data_type()] for name, value in zip(names, values)]  # noqa: B905 - 3.9
    (folder / "outputs.json").write_text(json.dumps(types), "utf-8")


def _value(ort: Any, array: Any, element: int) -> Any:
    if not element:
        return ort.OrtValue.ortvalue_from_numpy(array)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, element)


def _array(np: Any, value: Any) -> Any:
    """Return the tensor of an OrtValue; raw integers for a type that numpy does not have."""
    kind = value.data_type()
    size = RAW.get(kind, 1 if kind.startswith("tensor(float8") else 0)
    if not size:
        array = value.numpy()
        # An array of objects would be pickled, and the reader refuses pickles.
        return array.astype(str) if array.dtype == object else array
    shape = value.shape()
    count = math.prod(shape) * size
    if not count:
        return np.empty(shape, f"u{size}")
    raw = (ctypes.c_uint8 * count).from_address(value.data_ptr())
    return np.frombuffer(raw, f"u{size}").reshape(shape).copy()


if __name__ == "__main__":
    main(sys.argv[1:])
