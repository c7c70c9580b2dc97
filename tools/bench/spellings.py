"""What a stock onnxruntime takes for the same thing spelled in several ways, interleaved.

    python -m tools.bench.spellings
    PYTHONPATH=.cache/onnxruntime-1.28.0:. python -m tools.bench.spellings  # another release

Attention after its three projections: between transposes, of rows with the heads side by side, and
as onnxruntime's own ops; a norm of a sum that nothing else reads. Chains of several, one thread,
whose own time is taken.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import NodeProto, helper, numpy_helper

ATTENTIONS = ("transposed", "rows", "MultiHeadAttention", "Attention, packed")
NORMS = ("Add", "Sum", "SkipLayerNormalization")
SIZES = ((1, 16, 64, 4), (1, 128, 384, 12), (4, 32, 384, 12))
"""Batch, length, width, heads."""
MICROSOFT, TURN = "com.microsoft", [0, 2, 1, 3]


class Chain:
    """A graph that grows by one layer after the other.

    Attributes:
        nodes: Its nodes.
        last: The output of the last layer.
    """

    def __init__(self, width: int, heads: int) -> None:
        self.width, self.heads = width, heads
        self.nodes: list[NodeProto] = []
        self.last = "x"
        self._constants: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        """Return the name of a new matrix or vector."""
        spread = (
            0.3 * self.width**-0.5
        )  # softmax of large scores has denormal results, which are slow
        values = self._random.standard_normal(shape).astype(np.float32) * spread
        return self.constant(values)

    def constant(self, values: np.ndarray) -> str:
        """Return the name of a new constant."""
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Return the output of a new node."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], domain=domain, **attributes))
        return name

    def model(self) -> bytes:
        """Return the model."""
        rows = helper.make_tensor_value_info("x", 1, ["batch", "length", self.width])
        out = helper.make_tensor_value_info(self.last, 1, ["batch", "length", self.width])
        graph = helper.make_graph(self.nodes, "chain", [rows], [out], self._constants)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return bytes(model.SerializeToString())


def attend(chain: Chain, spelling: str) -> None:
    """Add projections, an attention and a residual connection."""
    x, width, heads = chain.last, chain.width, chain.heads
    if spelling == "Attention, packed":
        weights = chain.weight(width, 3 * width), chain.weight(3 * width)
        y = chain.node("Attention", x, *weights, domain=MICROSOFT, num_heads=heads)
    else:
        rows = []
        for _ in range(3):
            product = chain.node("MatMul", x, chain.weight(width, width))
            rows.append(chain.node("Add", product, chain.weight(width)))
        y = attention(chain, spelling, rows)
    chain.last = chain.node("Add", x, chain.node("MatMul", y, chain.weight(width, width)))


def attention(chain: Chain, spelling: str, rows: list[str]) -> str:
    """Add an attention of three projections."""
    heads, width = chain.heads, chain.width
    if spelling == "MultiHeadAttention":
        return chain.node(spelling, *rows, domain=MICROSOFT, num_heads=heads)
    if spelling == "rows":
        return chain.node("Attention", *rows, q_num_heads=heads, kv_num_heads=heads)
    apart = chain.constant(np.array([0, 0, heads, width // heads]))
    laid = [chain.node("Transpose", chain.node("Reshape", r, apart), perm=TURN) for r in rows]
    turned = chain.node("Transpose", chain.node("Attention", *laid), perm=TURN)
    return chain.node("Reshape", turned, chain.constant(np.array([0, 0, width])))


def normalize(chain: Chain, spelling: str) -> None:
    """Add a norm of the sum of two tensors; nothing else reads the sum."""
    x, parameters = chain.last, [chain.weight(chain.width) for _ in range(2)]
    turned = chain.node("Neg", x)
    if spelling == "SkipLayerNormalization":
        chain.last = chain.node(spelling, x, turned, *parameters, domain=MICROSOFT, epsilon=1e-5)
    else:
        total = chain.node(spelling, x, turned)
        chain.last = chain.node("LayerNormalization", total, *parameters, axis=-1, epsilon=1e-5)


def main() -> int:
    """Measure everything and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="for each row")
    seconds = parser.parse_args().seconds
    print(f"onnxruntime {ort.__version__}, one thread, µs for a layer, minima")
    for add, spellings in ((attend, ATTENTIONS), (normalize, NORMS)):
        print(f"\n| batch, length, width, heads | {' | '.join(spellings)} |")
        print("|---|" + "---:|" * len(spellings))
        for batch, length, width, heads in SIZES:
            models = []
            for spelling in spellings:
                chain = Chain(width, heads)
                for _ in range(4):
                    add(chain, spelling)
                models.append(chain.model())
            rows = np.random.default_rng(1).standard_normal((batch, length, width))
            times = measured(models, {"x": rows.astype(np.float32)}, seconds)
            cells = " | ".join(f"{best * 1e6 / 4:.0f}" for best in times)
            print(f"| {batch}, {length}, {width}, {heads} | {cells} |")
    return 0


def measured(models: list[bytes], feeds: dict[str, np.ndarray], seconds: float) -> list[float]:
    """Return the shortest time of each model, run in turns."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    sessions = [ort.InferenceSession(model, options) for model in models]
    best, end = [float("inf")] * len(sessions), time.perf_counter() + seconds
    while time.perf_counter() < end:
        for index, session in enumerate(sessions):
            begin = time.thread_time()
            session.run(None, feeds)
            best[index] = min(best[index], time.thread_time() - begin)
    return best


if __name__ == "__main__":
    sys.exit(main())
