"""Nodes as text."""

from __future__ import annotations

from coreai_onnx.debugging.diff.fingerprints import graph_digest
from coreai_onnx.debugging.diff.node_listing import node_listing
from tests.support.small_models import parse


def test_nodes_with_their_lines() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["": 21, "ai.coreai": 1]>
    g (float[n, 4] x, bool c) => (float[n, 4] y) {
        [a] h = Gelu<approximate = "tanh">(x)  [b] k = ai.coreai.twice(h)
        [c] y = If(c) <then_branch = t () => (float[n, 4] p) { p = Neg(k) },
                       else_branch = e () => (float[n, 4] q) { q = Abs(k) }> }
    <domain: "ai.coreai", opset_import: ["": 21]> twice (i) => (o) { o = Add(i, i) }""",
        {"coreai.code": {"m.py": {"7": "return self.act(x)"}}},
    )
    for node in list(model.graph)[:2]:
        node.metadata_props.update({"coreai.scope": "mlp.act", "coreai.class": "GELU"})
        node.metadata_props["coreai.source"] = "m.py:7"
    assert (
        node_listing(model)
        == """\
# Module mlp.act (GELU)
# File m.py, line 7, code: return self.act(x)
h = Gelu(x, approximate=tanh)
k = ai.coreai::twice(h)

y: float32[n, 4] = If(c, else_branch=graph {}, then_branch=graph {})
    p: float32[n, 4] = Neg(k)
    q: float32[n, 4] = Abs(k)

function ai.coreai::twice(i)
  o = Add(i, i)""".format(*_digests(model))
    )


def _digests(model):
    choice = list(model.graph)[2]
    branches = (choice.attributes[name] for name in ("else_branch", "then_branch"))
    return [graph_digest(branch.value)[:12] for branch in branches]


def test_names_cannot_control_a_terminal() -> None:
    model = parse(
        '<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) { y = Neg(x) }'
    )
    model.graph[0].metadata_props["coreai.scope"] = "a\x1b[2J\nb"
    assert "\x1b" not in node_listing(model)
    assert len(node_listing(model).splitlines()) == 2
