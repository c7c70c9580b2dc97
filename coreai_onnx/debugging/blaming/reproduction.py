"""A folder that reproduces a wrong result, in the form of ONNX's own test cases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from coreai_onnx.debugging.reference.regions import COMPUTED
from coreai_onnx.debugging.verdict.difference import Array
from coreai_onnx.errors import SaveError, failures_as
from coreai_onnx.model.files.saving import save_models, write_text

DATA = "test_data_set_0"
SCRIPT = '''"""Runs model.onnx on the inputs in test_data_set_0; prints how its outputs differ."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

FOLDER = Path(__file__).parent


def read(kind, index):
    path = FOLDER / "test_data_set_0" / f"{kind}_{index}.pb"
    return onnx.numpy_helper.to_array(onnx.load_tensor(str(path)))


session = onnxruntime.InferenceSession(FOLDER / "model.onnx", providers=["CPUExecutionProvider"])
feeds = {value.name: read("input", i) for i, value in enumerate(session.get_inputs())}
for index, (value, actual) in enumerate(zip(session.get_outputs(), session.run(None, feeds))):
    expected = read("output", index)
    error = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    print(f"{value.name}: largest difference {error.max(initial=0.0):.3e}")
'''


def write_reproduction(folder: Path, model: ir.Model, known: Mapping[str, Array]) -> Path:
    """Write ``model.onnx``, ``test_data_set_0/input_i.pb`` and ``output_i.pb``, and ``run.py``.

    Args:
        folder: The folder; it is created.
        model: The model; the names of its outputs end in ``#computed``.
        known: torch's results by value name: the inputs, and the expected outputs.

    Returns:
        The folder.

    Raises:
        SaveError: If it cannot be written.
    """
    with failures_as(SaveError, f"cannot write {folder}"):
        (folder / DATA).mkdir(parents=True, exist_ok=True)
        save_models({folder / "model.onnx": model}, folder / "model.onnx.data")
        for kind, values in (("input", model.graph.inputs), ("output", model.graph.outputs)):
            for index, value in enumerate(values):
                name = value.name or ""
                tensor = _tensor(known[name.removesuffix(COMPUTED)], name)
                onnx.save_tensor(tensor, folder / DATA / f"{kind}_{index}.pb")
        write_text(folder / "run.py", SCRIPT)
    return folder


def _tensor(array: Array, name: str) -> onnx.TensorProto:
    proto: onnx.TensorProto = ir.to_proto(ir.tensor(np.ascontiguousarray(array), name=name))
    return proto
