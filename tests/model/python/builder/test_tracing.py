"""Traced functions: sites, branches, values."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coreai_onnx.errors import LoadError
from coreai_onnx.model.python.package import imported
from tests.model.python.packages import built, written

GRAPH = """
def twice(x):
    return op.Neg(op.Neg(x))

@model.graph(outputs={"y": FLOAT["n"]})
def main(x: FLOAT["n"]):
    for _ in range(2):
        x = twice(x)
    return op.Add(x, op.Neg(x))
"""
BRANCH = """
@model.graph(outputs={"y": FLOAT["n"]})
def main(x: FLOAT["n"], c: BOOL):
    def then_branch():
        global inner
        inner = op.Neg(x)
        return inner

    y = op.If(c, then_branch=then_branch, else_branch=lambda: op.Abs(x))
    return RESULT
"""


def test_a_node_is_named_after_the_functions_around_it(tmp_path: Path) -> None:
    names = [node.name for node in built(GRAPH, tmp_path).graph]
    assert names == ["twice/Neg", "twice/Neg_1", "twice_1/Neg", "twice_1/Neg_1", "Neg", "Add"]


def test_branches_see_the_values_around_them(tmp_path: Path) -> None:
    node = built(BRANCH.replace("RESULT", "y"), tmp_path).graph.node(0)
    assert [attribute.name for attribute in node.attributes.values()] == [
        "then_branch",
        "else_branch",
    ]


def test_values_of_a_branch_stay_inside(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"model.py:6: .* is a value of another graph"):
        built(BRANCH.replace("RESULT", "inner"), tmp_path)


def test_operators_outside_of_a_graph(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"model.py:6: Neg is called outside of the graph"):
        built("\nop.Neg(1.0)\n", tmp_path)


def test_threads_trace_their_own_graphs(tmp_path: Path) -> None:
    """Two graphs that are traced at the same time: each waits for the other to begin."""
    text = """
import threading
barrier = threading.Barrier(2, timeout=30)
@model.function("test")
def twice(x):
    barrier.wait()
    return op.Add(x, x)
@model.graph(outputs={"y": FLOAT["n"]})
def main(x: FLOAT["n"]):
    y = twice(x)
    barrier.wait()
    return op.Neg(y)
"""
    folder = written(text, tmp_path)
    with imported(folder) as package, ThreadPoolExecutor(2) as pool:
        (model,) = package.MODELS.values()
        futures = [pool.submit(model.build) for _ in range(2)]
        models = [future.result() for future in futures]
    for model in models:
        assert [node.op_type for node in model.graph] == ["twice", "Neg"]
        (function,) = model.functions.values()
        assert [node.op_type for node in function] == ["Add"]
