"""The models of onnx's own backend tests, with the inputs and outputs that come with them."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

KINDS = ("node", "simple", "light", "pytorch-operator", "pytorch-converted")
"""Of the models that come with the package; those of kind ``real`` are downloads."""
DataSet = tuple[list[Any], list[Any]]
"""Inputs and outputs: arrays, lists of them, or None."""


@dataclass(frozen=True)
class BackendModel:
    """A model of onnx's backend tests.

    Attributes:
        case: What onnx says about it.
    """

    case: TestCase

    @property
    def name(self) -> str:
        """The name with its kind, ``node/test_abs``."""
        return f"{self.case.kind}/{self.case.name}"

    @property
    def proto(self) -> onnx.ModelProto:
        """The model."""
        if self.case.model is not None:
            return self.case.model
        return onnx.load(Path(self.case.model_dir, "model.onnx"))

    def first_data(self) -> DataSet | None:
        """Return the first inputs and outputs; None if the model comes without."""
        if self.case.data_sets:
            inputs, outputs = self.case.data_sets[0]
            return [_value(x) for x in inputs], [_value(x) for x in outputs]
        folders = sorted(Path(self.case.model_dir or ".").glob("test_data_set_*"))
        if not folders:
            return None
        graph = self.proto.graph
        weights = {tensor.name for tensor in graph.initializer}
        given = [i for i in graph.input if i.name not in weights]
        inputs = [_read(folders[0] / f"input_{i}.pb", v) for i, v in enumerate(given)]
        outputs = [_read(folders[0] / f"output_{i}.pb", v) for i, v in enumerate(graph.output)]
        return inputs, outputs


@functools.cache
def backend_models() -> dict[str, BackendModel]:
    """Return every model by its name, ``node/test_abs``."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, in onnx's reference results
        for kind in KINDS:
            for case in load_model_tests(kind=kind):
                if case.model is not None or case.model_dir is not None:
                    found[f"{kind}/{case.name}"] = BackendModel(case)
    return found


def _read(path: Path, info: onnx.ValueInfoProto) -> Any:
    kinds = {
        "sequence_type": (onnx.SequenceProto, numpy_helper.to_list),
        "optional_type": (onnx.OptionalProto, numpy_helper.to_optional),
        "tensor_type": (onnx.TensorProto, numpy_helper.to_array),
    }
    proto, convert = kinds[info.type.WhichOneof("value")]
    message = proto()
    message.ParseFromString(path.read_bytes())
    return convert(message)


def _value(x: Any) -> Any:
    return numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x
