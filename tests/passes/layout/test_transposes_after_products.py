from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from coreai_onnx.passes import run_passes
from coreai_onnx.passes.layout.transposes_of_products import transposes_after_products
from tests.passes.rewriting import leaves, parse, rewrite
from tests.support.tolerances import assert_close

OPEN = """
import onnxruntime, sys
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
"""
MATRIX = "float16[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}"
WIDE = MATRIX.replace("float16", "float")
HALF = f"""main (float16[a, b, 4] x) => (float16[b, a, 3] y) <{MATRIX}> {{
  float16[b, a, 4] t = Transpose <perm = [1, 0, 2]> (x)  y = MatMul (t, w)
}}"""
BRAIN = f"""main (bfloat16[a, b, 4] x) => (float[b, a, 3] y) <{WIDE}> {{
  bfloat16[b, a, 4] t = Transpose <perm = [1, 0, 2]> (x)  float[b, a, 4] c = Cast <to = 1> (t)  y = MatMul (c, w)
}}"""
ROW = BRAIN.replace(WIDE, "float[4] w = {1, 2, 3, 4}").replace("[b, a, 3]", "[b, a]")
FOUR = f"""main (float16[a, b, c, 4] x) => (float16[b, c, a, 3] y) <{MATRIX}> {{
  float16[b, c, a, 4] t = Transpose <perm = [1, 2, 0, 3]> (x)  y = MatMul (t, w)
}}"""
INNER = f"""main (float16[4, b, c] x) => (float16[b, c, 3] y) <{MATRIX}> {{
  float16[b, c, 4] t = Transpose <perm = [1, 2, 0]> (x)  y = MatMul (t, w)
}}"""
RIGHT = """main (float16[3, b, c] x) => (float16[b, 4, c] y) <float16[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
  float16[b, 3, c] t = Transpose <perm = [1, 0, 2]> (x)  y = MatMul (w, t)
}"""
LOWER = """main (float16[a, b, 4] x, float16[d, b, 4, 3] w) => (float16[d, b, a, 3] y) {
  float16[b, a, 4] t = Transpose <perm = [1, 0, 2]> (x)  y = MatMul (t, w)
}"""
ALL = {
    "half": HALF, "brain": BRAIN, "row": ROW, "four": FOUR, "inner": INNER, "right": RIGHT,
    "lower": LOWER,
}  # fmt: skip


def test_a_transpose_goes_behind_the_product() -> None:
    rewrite(
        HALF,
        transposes_after_products,
        1,
        f"""main (float16[a, b, 4] x) => (float16[b, a, 3] y) <{MATRIX}> {{
          t = Transpose <perm = [1, 0, 2]> (x)  y_matmul = MatMul (x, w)  y = Transpose <perm = [1, 0, 2]> (y_matmul)
        }}""",
    )


def test_a_cast_stays_before_the_product() -> None:
    rewrite(
        BRAIN,
        transposes_after_products,
        1,
        f"""main (bfloat16[a, b, 4] x) => (float[b, a, 3] y) <{WIDE}> {{
          t = Transpose <perm = [1, 0, 2]> (x)  c = Cast <to = 1> (t)
          y_cast = Cast <to = 1> (x)  y_matmul = MatMul (y_cast, w)  y = Transpose <perm = [1, 0, 2]> (y_matmul)
        }}""",
    )


@pytest.mark.parametrize(("name", "widened"), [("inner", "w"), ("right", "w"), ("lower", "t")])
def test_elsewhere_the_operands_get_one_rank(name: str, widened: str) -> None:
    model = parse(ALL[name])
    assert run_passes(model, [transposes_after_products]).total == 1
    assert [node.op_type for node in model.graph] == ["Transpose", "Unsqueeze", "MatMul"]
    assert model.graph[1].inputs[0].name == widened
    shapes = {len(value.shape) for value in model.graph[2].inputs if value is not None}
    assert len(shapes) == 1


@pytest.mark.parametrize("name", ALL)
def test_a_stock_session_opens_it_and_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    before, after = parse(ALL[name]), parse(ALL[name])
    assert run_passes(after, [transposes_after_products]).total == 1
    path = tmp_path / "model.onnx"
    ir.save(after, path)
    done = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_close(_run(after), _run(before))


def _run(model: ir.Model) -> np.ndarray:
    """Run a model as it is written, without any optimizer of onnxruntime."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    feeds, sizes = {}, {"a": 5, "b": 2, "c": 6, "d": 3}
    for value in session.get_inputs():
        shape = [sizes.get(dim, dim) for dim in value.shape]
        numbers = np.arange(np.prod(shape)).reshape(shape) % 7 - 3
        if value.type == "tensor(float16)":
            feeds[value.name] = ort.OrtValue.ortvalue_from_numpy(numbers.astype(np.float16))
        else:
            bits = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            feeds[value.name] = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)
    (result,) = session.run_with_ort_values(["y"], feeds)
    return result.numpy()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HALF.replace("float16", "float"), None),  # onnxruntime inserts no Cast
        (HALF.replace("float16[4, 3]", "float16[1, 4, 3]"), None),  # one rank: it connects them
        (HALF.replace("[1, 0, 2]", "[2, 1, 0]").replace("[a, b, 4] x", "[4, a, b] x"), None),
        (
            LOWER.replace("float16[d, b, 4, 3] w", "float16[] w"),
            "the rank of an operand is not known",
        ),
        (
            INNER.replace(MATRIX, "float16[4] w = {1, 2, 3, 4}").replace("[b, c, 3]", "[b, c]"),
            "an operand is a row, and the product cannot come first",
        ),
    ],
    ids=["float32", "one_rank", "other_perm", "unknown", "row"],
)
def test_others_stay(text: str, reason: str | None) -> None:
    leaves(text, transposes_after_products, reason)
