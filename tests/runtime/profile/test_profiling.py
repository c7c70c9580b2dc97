"""Sessions that record the time of each node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.errors import SessionError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.profile.node_times import NodeTime
from coreai_onnx.runtime.sessions.create import session
from tests.support.small_models import counter_model, parse

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)


def two_calls() -> ir.Model:
    """Two calls of one composite with a body of three nodes, and two products between them."""
    weight, bias = (", ".join(["0.5"] * count) for count in (64, 8))
    return parse(f"""<ir_version: 10, opset_import: ["": 21, "ai.coreai": 1]>
    g (float[n, 8] x) => (float[n, 8] y)
    <float[8, 8] w = {{{weight}}}, float[8] b = {{{bias}}}>
    {{ [act_0] a = ai.coreai.gate(x)  [mm_0] m = MatMul(a, w)  [add_0] s = Add(m, b)
       [act_1] c = ai.coreai.gate(s)  [mm_1] y = MatMul(c, w) }}
    <domain: "ai.coreai", opset_import: ["": 21]>
    gate (i) => (o) {{ [t] t = Tanh(i)  [e] e = Erf(t)  [p] o = Mul(e, i) }}""")


def test_every_node_leads_to_its_call() -> None:
    model = two_calls()
    opened = session(model, kernels=False, profile=True)
    expected = session(model, kernels=False).run(X)
    for _ in range(3):
        np.testing.assert_array_equal(opened.run(X)["y"], expected["y"])
    profile = opened.profile(skip=1)
    assert profile.main.unplaced == 0
    assert len(profile.main.timing.seconds) == 2
    bodies: dict[str, list[str]] = {}
    for node in profile.main.nodes:
        bodies.setdefault(node.place.node, []).append(node.place.body)
    assert bodies["act_0"] == ["t", "e", "p"] == bodies["act_1"]
    assert {"mm_0", "mm_1"} <= set(bodies) <= {"act_0", "act_1", "mm_0", "mm_1", "add_0"}
    assert all(node.median > 0 for node in profile.main.nodes)


def product(nodes: tuple[NodeTime, ...], name: str) -> NodeTime:
    return next(
        node for node in nodes if node.place.node == name and node.ran in ("MatMul", "Gemm")
    )


def test_work_counts_packed_weights() -> None:
    opened = session(two_calls(), kernels=False, profile=True)
    opened.run(X)
    product_1 = product(opened.profile().main.nodes, "mm_1")
    assert product_1.flops == 2 * 4 * 8 * 8
    assert product_1.moved == 4 * (4 * 8 + 8 * 8 + 4 * 8)


def test_kernels_are_one_node() -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 23, "ai.coreai": 1]>
    g (float[4, 8] x) => (float[4, 8] y) <float[8] w = {1,1,1,1,1,1,1,1}>
    { [norm] y = ai.coreai.rms_norm(x, w) }
    <domain: "ai.coreai", opset_import: ["": 23]>
    rms_norm <eps: float = 0.00001>(input, weight) => (output)
    { [body] output = RMSNormalization<epsilon: float = @eps>(input, weight) }""")
    ran = {}
    for kernels in (False, True):
        opened = session(model, kernels=kernels, profile=True)
        opened.run(X)
        (execution,) = opened.profile().executions
        (node,) = execution.nodes
        ran[execution.name] = (node.ran, node.place.op, node.place.body)
    assert ran == {
        "bodies": ("RMSNormalization", "ai.coreai::rms_norm", "body"),
        "kernels": ("rms_norm", "ai.coreai::rms_norm", ""),
    }


def test_a_file_with_its_debug_information(tmp_path: Path) -> None:
    model = two_calls()
    for node in model.graph:
        node.metadata_props["coreai.source"] = "m.py:7"
    OnnxProgram({"main": model}).save(tmp_path / "m.onnx", external_data=True)
    for source in (tmp_path / "m.onnx", OnnxProgram({"main": model}).to_proto()):
        opened = session(source, kernels=False, profile=True)
        opened.run(X)
        assert [total.key for total in opened.profile().by("line")] == ["m.py:7"]


def test_states_and_streams_share_the_profile() -> None:
    opened = session(counter_model(), kernels=False, profile=True)
    other = opened.stream()
    for one in (opened, opened, other):
        one.run(np.ones(3, np.float32))
    assert opened.state["count"] == 3
    assert len(other.profile().main.timing.seconds) == 3


def test_no_profile() -> None:
    opened = session(two_calls(), kernels=False)
    with pytest.raises(SessionError, match=r"open it with session\(\.\.\., profile=True\)"):
        opened.profile()
    recorded = session(two_calls(), kernels=False, profile=True)
    with pytest.raises(SessionError, match="there is no run to profile"):
        recorded.profile()
    with pytest.raises(SessionError, match="returned before"):
        recorded.profile()


def test_a_broken_file_is_reported_like_without_a_profile(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nothing")
    with pytest.raises(SessionError, match="cannot load"):
        session(tmp_path / "m.onnx", profile=True)
