"""Edited models are checked with ONNX's inference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.errors import LoadError
from tests.model.python.packages import built

GRAPH = """
@model.graph(outputs={"y": FLOAT["n", 3]})
def main(x: FLOAT["n", 2]):
    z = op.Neg(x)
    return op.MatMul(z, weights["w"])
"""


def test_values_get_types(tmp_path: Path) -> None:
    model = built(GRAPH, tmp_path, {"w": np.ones((2, 3), np.float32)})
    value = model.graph.node(0).outputs[0]
    assert (value.dtype, value.shape) == (ir.DataType.FLOAT, ir.Shape(["n", 2]))


def test_a_wrong_shape_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"model.py:9: MatMul: Incompatible dimensions"):
        built(GRAPH, tmp_path, {"w": np.ones((4, 3), np.float32)})


def test_a_wrong_type_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"model.py:9: MatMul: "):
        built(GRAPH, tmp_path, {"w": np.ones((2, 3), np.int64)})
