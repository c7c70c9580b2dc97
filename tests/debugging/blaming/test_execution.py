"""Runs of cut graphs."""

from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.debugging.blaming.execution import run_all
from coreai_onnx.debugging.reference.regions import CutGraph, cut
from coreai_onnx.errors import SessionError
from tests.support.small_models import parse

TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[2, 3] x) => (float[2, 3] z) { y = Neg(x)  w = Softmax<axis = AXIS>(y)  z = Abs(w) }"""
KNOWN = {name: np.full((2, 3), i, np.float32) for i, name in enumerate("xyzw")}


def test_every_region_has_a_result() -> None:
    graph = cut(parse(TEXT.replace("AXIS", "1")), KNOWN)
    found = run_all(graph, KNOWN, graph.regions, kernels=False)
    assert {name: np.asarray(x).ravel()[0].item() for name, x in found.items()} == {
        "y": 0.0,
        "w": pytest.approx(1 / 3),
        "z": 3.0,
    }


def test_a_broken_region_is_told_from_the_others() -> None:
    graph = cut(parse(TEXT.replace("AXIS", "7")), KNOWN)
    found = run_all(graph, KNOWN, graph.regions, kernels=False)
    assert isinstance(found["w"], str)
    assert "onnxruntime cannot run it" in found["w"]
    assert isinstance(found["y"], np.ndarray)
    with pytest.raises(SessionError):
        run_all(CutGraph(graph.model, ()), KNOWN, (), kernels=False)
