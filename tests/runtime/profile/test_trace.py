"""What is read from onnxruntime's own profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coreai_onnx.model.provenance.places import marked
from coreai_onnx.model.work import Operand
from coreai_onnx.runtime.profile.trace import Executed, Owners, read_runs
from tests.support.small_models import parse


def event(name: str, ts: int, dur: int, op: str = "", tid: int = 1, **args: object) -> dict:
    cat = "Node" if op else "Session"
    given = {"op_name": op, **args}
    return {"cat": cat, "ph": "X", "tid": tid, "name": name, "ts": ts, "dur": dur, "args": given}


def written(events: list[dict], folder: Path) -> Path:
    path = folder / "profile.json"
    path.write_text(json.dumps(events))
    return path


def test_runs_have_their_nodes(tmp_path: Path) -> None:
    shapes = [{"float": [2, 3]}, {"int64": []}]
    events = [
        event("session_initialization", 0, 5),
        event("a_kernel_time", 11, 2, "Add", input_type_shape=shapes, output_type_shape=shapes[:1]),
        event("a_fence_before", 11, 0, "Add"),
        event("model_run", 10, 5),
        event("a_kernel_time", 21, 4, "Add"),
        event("model_run", 20, 6),
    ]
    first, second = read_runs(written(events, tmp_path))
    (one,) = first.executed
    assert one.name == "a"
    assert one.inputs == (Operand("float", (2, 3)), Operand("int64", ()))
    assert one.outputs == (Operand("float", (2, 3)),)
    assert (first.seconds, one.seconds) == pytest.approx((5e-6, 2e-6))
    assert [x.seconds for x in second.executed] == pytest.approx([4e-6])


def test_the_time_of_a_loop_is_without_its_nodes(tmp_path: Path) -> None:
    events = [
        event("model_run", 0, 100),
        event("loop_kernel_time", 1, 50, "Loop"),
        event("inner_if_kernel_time", 5, 20, "If"),
        event("x_kernel_time", 6, 15, "Neg"),
        event("y_kernel_time", 30, 10, "Neg"),
        event("after_kernel_time", 60, 3, "Neg"),
    ]
    (run,) = read_runs(written(events, tmp_path))
    times = {one.name: round(one.seconds * 1e6) for one in run.executed}
    assert times == {"loop": 20, "inner_if": 5, "x": 15, "y": 10, "after": 3}


def test_threads_run_at_the_same_time(tmp_path: Path) -> None:
    events = [
        event("model_run", 0, 10, tid=1),
        event("a_kernel_time", 2, 5, "Add", tid=1),
        event("model_run", 1, 10, tid=2),
        event("a_kernel_time", 3, 7, "Add", tid=2),
    ]
    runs = read_runs(written(events, tmp_path))
    assert [[round(one.seconds * 1e6) for one in run.executed] for run in runs] == [[5], [7]]


def test_nodes_of_onnxruntime_belong_to_nodes_of_the_model() -> None:
    model = marked(
        parse("""<ir_version: 10, opset_import: ["": 21]>
        g (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}>
        { [mm] m = MatMul(x, w)  [act] a = Relu(m)  [add] y = Add(a, x) }"""),
        lambda key: False,
    )
    mm, act, add = (node.name for node in model.model.graph)
    ran = parse(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[2, 4] x) => (float[2, 4] y)
        <float[4, 4] w = {{1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}}> {{
          ["cast"] c = Cast<to = 1>(x)
          ["{mm}/Fused"] a = FusedMatMul(c, w)
          ["fused_by_value"] y0 = Add(a, x)
          ["back"] y = Identity(y0) }}""")
    owners = Owners(ran, model)
    assert [model.number(x or "") for x in (mm, act, add)] == [0, 1, 2]
    assert owners.get("cast") == 0, "it is read by the product"
    assert owners.get(f"{mm}/Fused") == 0
    assert owners.get("back") == 2, "it computes the value of the sum"
    assert owners.get("fused_by_value") == 2
    assert owners.get("unknown") is None


def test_packed_weights_are_inputs_too() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 4] x) => (float[2, 3] y) <float[4, 3] w = {1,1,1,1,1,1,1,1,1,1,1,1}>
    { [mm] y = MatMul(x, w) }""")
    owners = Owners(model, marked(model, lambda key: False))
    x, w = Operand("float", (2, 4)), Operand("float", (4, 3))
    for given in ((x,), (x, w)):
        assert owners.inputs(Executed("mm", "MatMul", 0.0, given, ())) == (x, w)
    assert owners.inputs(Executed("other", "MatMul", 0.0, (x,), ())) == (x,)


def test_nodes_without_a_name_are_found_by_their_order() -> None:
    model = marked(
        parse("""<ir_version: 10, opset_import: ["": 21]>
        g (float[4] x) => (float[4] y, float[4] z) { [a] y = Neg(x)  [b] z = Neg(y) }"""),
        lambda key: False,
    )
    ran = """<ir_version: 10, opset_import: ["": 21]>
        g (float[4] x) => (float[4] y, float[4] z) { y = Neg(x)  z = Neg(y) }"""
    executed = [Executed(name, "Neg", 0.0, (), ()) for name in ("Neg_17", "Neg_3", "Neg_17")]
    owners = Owners(parse(ran), model, executed)
    assert [owners.get(name) for name in ("Neg_17", "Neg_3")] == [0, 1]
    others = Owners(parse(ran), model, executed[:1])
    assert others.get("Neg_17") is None, "one of two nodes did not run"
