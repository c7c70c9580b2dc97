"""Nodes of a run are counted by provider, and those on the CPU by reason."""

from __future__ import annotations

import json

import onnx
import onnx.parser
import onnxruntime
import pytest

from tools.providers import tracing
from tools.providers.tracing import CPU, NO_KERNEL, REFUSED, WEBGPU, sessions_on

MODEL = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Cos(x) }'
).SerializeToString()
GRAPH = onnx.parser.parse_model("""
<ir_version: 10, opset_import: ["": 21]>
g (float[2] x, int64[2, 3] i) => (float[2] y, bool[2, 3] m) {
  [a] z = Mul (x, x)  [c] y = Cos (z)  [s] d = Shape (x)  [concat] e = Concat <axis = 0> (d, d)
  [mask] m = Less (i, i)
}""")
"""What onnxruntime runs after its own optimizations."""
LOG = "webgpu kernel not found in registries for Op type: Cos node name: cos\n"


def event(at, name, op, provider, shape=(2, 2), dtype="float"):
    facts = {
        "op_name": op,
        "provider": provider,
        "node_index": name,
        "input_type_shape": [{dtype: list(shape)}],
        "output_type_shape": [{dtype: list(shape)}],
    }
    return {"name": f"{name}_kernel_time", "ts": at, "dur": 1, "args": facts}


EVENTS = [
    {"name": "model_run", "ts": 10, "dur": 20, "args": {}},
    event(11, "a", "Mul", WEBGPU),
    event(12, "b", "MemcpyToHost", WEBGPU),
    event(13, "cos", "Cos", CPU),
    event(14, "cos", "Cos", CPU),  # a loop runs it again
    event(15, "pad", "Pad", CPU),
    event(16, "concat", "Concat", CPU, (3,), "int64"),
    event(17, "mask", "Less", CPU, (2, 3), "int64"),
    {"name": "model_run", "ts": 40, "dur": 9, "args": {}},
    event(41, "a", "Mul", WEBGPU),
]


@pytest.fixture(name="stand_in")
def _stand_in(monkeypatch, tmp_path):
    """A session that wrote a log and a profile, as one on WebGPU does."""
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(EVENTS))

    class Session:
        def __init__(self, model, options, providers) -> None:
            assert providers == [(WEBGPU, {}), CPU]
            tracing.os.write(2, LOG.encode())
            onnx.save(GRAPH, options.optimized_model_filepath)

        def end_profiling(self) -> str:
            return str(trace)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    return Session


def test_nodes_of_each_run(stand_in) -> None:
    with sessions_on(WEBGPU) as opened:
        session = onnxruntime.InferenceSession(MODEL, providers=[CPU])
        assert isinstance(session, stand_in)
    assert onnxruntime.InferenceSession is stand_in
    first, second = opened[0].placements()
    assert first.as_json() == {
        "device": 1,
        "copies": 1,
        "declared": 1,
        "others": {
            f"Cos-7(float): {NO_KERNEL}": 1,
            f"Less-13(int64): {REFUSED}": 1,
            f"Pad-21(float): {REFUSED}": 1,
        },
    }
    assert (second.device, second.others) == (1, {})
