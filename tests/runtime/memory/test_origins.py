"""Source lines of values in onnxruntime's graph."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from coreai_onnx.model.provenance.debug_info import SOURCE
from coreai_onnx.runtime.memory.origins import Origins
from coreai_onnx.runtime.memory.recorded_session import RecordedNode, Recording
from tests.support.small_models import parse


@pytest.fixture
def model() -> ir.Model:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[2] x) => (float[2] y) { a = Neg(x)  y = Abs(a) }""")
    for line, node in enumerate(model.graph, 1):
        node.metadata_props[SOURCE] = f"model.py:{line}"
    return model


def ran(*nodes: tuple[str, str, str]) -> Recording:
    """Build a recording of nodes: name, input and result."""
    made = [
        RecordedNode(name, "", "Op", (read,), (result,), (8,), 0) for name, read, result in nodes
    ]
    return Recording(tuple(made), frozenset({"x"}), frozenset({"y"}), {}, 0, 0, 0)


def test_a_value_of_the_model(model: ir.Model) -> None:
    assert Origins(model).of("a", ran(("n", "x", "a"), ("m", "a", "y"))).source == "model.py:1"


def test_a_value_in_the_body_of_a_function_belongs_to_what_is_computed_from_it(
    model: ir.Model,
) -> None:
    recording = ran(("n", "x", "inner"), ("o", "x", "other"), ("m", "inner", "y"))
    assert Origins(model).of("inner", recording).source == "model.py:2"
    assert Origins(model).of("other", recording).source == ""


def test_a_convolution_in_another_layout(model: ir.Model) -> None:
    recording = ran(("a_nchwc", "x", "token"), ("m", "token", "y"))
    assert Origins(model).of("token", recording).source == "model.py:1"
