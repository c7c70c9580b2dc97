"""CPU time of loading, showing, optimizing and saving graphs of many nodes or nested functions.

python -m tools.bench.large_graphs --nodes 25000 100000 --functions 40 2000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from coreai_onnx import OnnxProgram
from coreai_onnx.debugging import inspect_model
from coreai_onnx.messages import render

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)]


def chain(count: int) -> onnx.ModelProto:
    """A chain of Add, Mul, Reshape, Transpose, Tanh and MatMul."""
    kinds = [("Add", ["c"]), ("Mul", ["x"]), ("Reshape", ["s"]), ("Transpose", []), ("Tanh", [])]
    kinds.append(("MatMul", ["c"]))
    nodes, last = [], "x"
    for i in range(count):
        op, more = kinds[i % len(kinds)]
        nodes.append(helper.make_node(op, [last, *more], [f"v{i}"], name=f"n{i}"))
        last = f"v{i}"
    nodes.append(helper.make_node("Identity", [last], ["y"], name="last"))
    weights = [
        helper.make_tensor("c", TensorProto.FLOAT, [4, 4], [1.0] * 16),
        helper.make_tensor("s", TensorProto.INT64, [2], [4, 4]),
    ]
    return _model(nodes, [], weights)


def functions(count: int, calls: int) -> onnx.ModelProto:
    """Functions that each call the next one, ``calls`` times."""
    made = []
    for i in range(count):
        inner = [
            helper.make_node(f"f{i + 1}", ["x" if c == 0 else f"a{c - 1}"], [f"a{c}"], domain="d")
            for c in range(calls if i + 1 < count else 0)
        ]
        last = helper.make_node("Neg", [inner[-1].output[0] if inner else "x"], ["y"])
        made.append(helper.make_function("d", f"f{i}", ["x"], ["y"], [*inner, last], OPSETS))
    return _model([helper.make_node("f0", ["x"], ["y"], domain="d")], made, [])


def _model(nodes: list, made: list, weights: list) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
    graph = helper.make_graph(nodes, "main", [x], [y], weights)
    return helper.make_model(graph, functions=made, opset_imports=OPSETS, ir_version=10)


def measured(step: Callable[[], object]) -> str:
    """CPU seconds of a step."""
    start = time.process_time()
    step()
    return f"{time.process_time() - start:.2f} s"


def row(what: str, model: onnx.ModelProto, folder: Path) -> tuple[str, ...]:
    """The times of one model."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    shown = measured(lambda: str(inspect_model(path)))
    program = OnnxProgram.load(path)
    import coreai_onnx.passes  # noqa: F401 - its import is not measured

    return what, shown, measured(program.optimize), measured(lambda: program.save(path))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="*", default=[25_000, 100_000])
    parser.add_argument("--functions", type=int, nargs="*", default=[40, 2_000])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = [row(f"{n} nodes", chain(n), Path(name)) for n in options.nodes]
        for n in options.functions:
            rows += [row(f"{n} functions, {c}x", functions(n, c), Path(name)) for c in (1, 2)]
    print(render(("model", "inspect", "optimize", "save"), rows))


if __name__ == "__main__":
    main()
