"""Bodies of If, Loop and Scan: what is converted, and whose dtypes are equal."""

from __future__ import annotations

import onnx_ir as ir

from coreai_onnx.quantization.half.bodies import bodies, equal_dtypes, receivers
from tests.support.small_models import parse

MODEL = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[3, 2] x, float[2] s, bool c)
        => (float[2] y, float[3, 2] z, float[2] w, float[k, 2] v) {
        y, z = Scan<num_scan_inputs = 1, body = step
            (float[2] d, float[2] e) => (float[2] f, float[2] g)
            { f = Add(d, e)  g = Neg(e) }>(s, x)
        [around] w, v = Loop<body = again (int64 i, bool a, float[2] h)
            => (bool b, float[2] k, float[2] l) {
            b = Identity(a)
            k = If<then_branch = yes () => (float[2] m) { m = Neg(h) },
                   else_branch = no () => (float[2] n) { n = Abs(h) }>(b)
            l = Identity(h)
        }>(, c, s)
    }"""


def names(values: object) -> list[str | None]:
    return [None if value is None else value.name for value in values]  # type: ignore[attr-defined]


def test_which_dtypes_are_equal() -> None:
    graph = parse(MODEL).graph
    scan, loop = graph
    branch = loop.attributes["body"].as_graph()[1]
    assert names(receivers(scan)) == ["d", "e"]
    assert names(receivers(loop)) == [None, None, "h"]
    assert names(receivers(branch)) == [None]
    assert list(map(names, equal_dtypes(scan))) == [["y", "f", "d"], ["z", "g"]]
    assert list(map(names, equal_dtypes(loop))) == [["w", "k", "h"], ["v", "l"]]
    assert list(map(names, equal_dtypes(branch))) == [["k", "m", "n"]]


def test_which_bodies_are_converted() -> None:
    graph: ir.Graph = parse(MODEL).graph
    found = bodies(graph, [])
    assert [body.name for body in found] == ["step", "again", "yes", "no"]
    assert [node.op_type for node in found.values()] == ["Scan", "Loop", "If", "If"]
    assert [body.name for body in bodies(graph, ["around"])] == ["step"]
    assert [body.name for body in bodies(graph, ["If"])] == ["step", "again"]
