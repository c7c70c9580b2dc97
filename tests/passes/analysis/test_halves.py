from __future__ import annotations

import onnx_graphsurgeon as gs

from coreai_onnx.passes import run_passes
from coreai_onnx.passes.analysis.halves import Halves
from coreai_onnx.passes.engine.edit import Edit
from coreai_onnx.passes.engine.why import Why
from tests.passes.rewriting import parse

HEAD = "main (float[s, 4] f, float[s, 4] g) => (float[1, s, 8] y) <int64[1] ax = {{0}}, float two = {{2}}> {{ {} }}"


def halved(body: str) -> tuple[str, list[str]]:
    """Ask for the half of ``y``; return its name and the ops of the graph."""
    found, ops = [], []

    def look(graph: gs.Graph, why: Why) -> int:
        if not found:
            edit = Edit(graph)
            half = Halves(edit).of(graph.outputs[0])
            edit.finish()
            found.append("" if half is None else half.name)
            ops.extend(node.op for node in graph.nodes)
        return 0

    run_passes(parse(HEAD.format(body)), [look])
    return found[0], ops


def test_the_chain_is_repeated_on_one_half() -> None:
    name, ops = halved(
        "float[s, 8] c = Concat <axis = 1> (f, f)  float[s, 8] d = Cos (c)"
        "  float[s, 8] m = Mul (d, two)  y = Unsqueeze (m, ax)"
    )
    assert name.endswith("unsqueeze")
    assert sorted(ops) == sorted(["Concat", *["Cos", "Mul", "Unsqueeze"] * 2])


def test_different_halves_are_seen() -> None:
    name, ops = halved(
        "float[s, 8] c = Concat <axis = 1> (f, g)  float[s, 8] d = Cos (c)  y = Unsqueeze (d, ax)"
    )
    assert (name, ops) == ("", ["Concat", "Cos", "Unsqueeze"])
