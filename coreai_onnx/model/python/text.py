"""Models as one text for reviews: their Python, and the names of nodes as comments after it."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from coreai_onnx.errors import LoadError
from coreai_onnx.model.files.external_data import FileTensor
from coreai_onnx.model.files.saving import raw_bytes
from coreai_onnx.model.inventory import initializers
from coreai_onnx.model.python.package import read_package, write_frame, write_package
from coreai_onnx.model.python.weights_file import AbsentTensor, write_weights

_MARK = "# names, types and origins of nodes, and types of weights: for coreai_onnx.from_text"


def to_text(model: ir.Model) -> str:
    """Return a model as text without the data of its initializers.

    Raises:
        SaveError: If the model has what Python source cannot express.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "text"
        weights = write_package({"main": model}, folder)["main"]
        source = (folder / "model.py").read_text("utf-8")
        names = (folder / "model.names.json").read_text("utf-8")
    # Only initializers lose their data: a tensor in an attribute may be a shape.
    mine = {id(value.const_value) for value in model.graph.initializers.values()}
    described = {
        name: _described(tensor, with_data=id(tensor) not in mine)
        for name, tensor in weights.items()
    }
    lines = ["{", *(f" {json.dumps(n)}: {json.dumps(d)}," for n, d in described.items())]
    lines[-1] = lines[-1].rstrip(",")
    comments = [f"# {line}" for line in (*names.splitlines(), *lines, "}")]
    return "\n".join([source, "", _MARK, *comments]) + "\n"


def _described(tensor: ir.TensorProtocol, *, with_data: bool) -> list[Any]:
    entry: list[Any] = [tensor.dtype.name, list(tensor.shape.numpy())]
    if with_data:
        entry.append(base64.b64encode(raw_bytes(tensor)).decode())
    return entry


def from_text(text: str) -> ir.Model:
    """Return the model of a text; it runs the Python in it.

    The initializers have types and shapes; reading their data raises `LoadError`.

    Raises:
        LoadError: If the text is not a model, or its Python is wrong; names the line.
    """
    source, mark, rest = text.partition(f"\n\n{_MARK}\n")
    comments = [line.removeprefix("# ") for line in rest.splitlines()]
    try:
        decoder = json.JSONDecoder()
        # Two JSON texts follow each other: the names, and the weights.
        names, end = decoder.raw_decode("\n".join(comments))
        weights = json.loads("\n".join(comments)[end:])
        tensors = {name: _tensor(name, *entry) for name, entry in weights.items()}
    except (ValueError, TypeError, LookupError) as error:
        what = "its last lines are damaged" if mark else f"it has no line {_MARK!r}"
        raise LoadError(f"the text is not a model: {what}") from error
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "text"
        folder.mkdir()
        write_frame(folder, {"main": "model"})
        (folder / "model.py").write_text(source + "\n", "utf-8")
        (folder / "model.names.json").write_text(json.dumps(names), "utf-8")
        with (folder / "model.safetensors").open("wb") as file:
            write_weights(file, tensors)
        model = read_package(folder)["main"]
        for value in initializers(model):
            tensor = tensors.get(value.name or "")
            if isinstance(value.const_value, FileTensor):
                value.const_value = tensor or value.const_value
    return model


def _tensor(name: str, dtype: str, shape: list[int], data: str = "") -> ir.TensorProtocol:
    kind = ir.DataType[dtype]
    if not data:
        return AbsentTensor(name, kind, shape)
    raw = base64.b64decode(data)
    proto = ir.to_proto(ir.Tensor(np.zeros(0, np.uint8), name=name))
    proto.data_type, proto.raw_data = kind.value, raw
    proto.dims[:] = shape
    return ir.serde.TensorProtoTensor(proto)
