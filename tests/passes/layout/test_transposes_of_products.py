from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from coreai_onnx import ExternalizeSpec, convert
from coreai_onnx.passes.layout.transposes_of_products import (
    separate_transposes,
    transposes_after_products,
)
from tests.passes.rewriting import leaves, parse, rewrite, run, run_passes
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


WEIGHT = "float16[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}"


OPSETS = '<ir_version: 10, opset_import: ["": 23, "f": 1]>'


HEAD = f"{OPSETS} main (float16[a, b, 4] x) => (float16[b, a, 3] y) <{WEIGHT}>"


TURN = "float16[b, a, 4] t = Transpose <perm = [1, 0, 2]> (x)"


def function(name: str, body: str) -> str:
    return f'<domain: "f", opset_import: ["": 23, "f": 1]> {name} {body}'


def model_text(main: str, *functions: str) -> str:
    return "\n".join([main, *functions])


LINEAR = function("linear", "(x, w) => (y) { y = MatMul (x, w) }")


TRANSPOSES_WIDE = function("wide", "(x, w) => (y) { c = Cast <to = 1> (x) d = Cast <to = 1> (w) m = MatMul (c, d) y = CastLike (m, x) }")  # fmt: skip


OUTER = function("outer", "(x, w) => (y) { y = f.linear (x, w) }")


TURNS = function("turns", "(x) => (y) { y = Transpose <perm = [1, 0, 2]> (x) }")


NORM = function("linear", "(x, w) => (y) { n = Mul (x, x) y = MatMul (n, w) }")


CASES = {
    "call": model_text(f"{HEAD} {{ {TURN} y = f.linear (t, w) }}", LINEAR),
    "cast": model_text(f"{HEAD} {{ {TURN} y = f.wide (t, w) }}", TRANSPOSES_WIDE),
    "nested": model_text(f"{HEAD} {{ {TURN} y = f.outer (t, w) }}", OUTER, LINEAR),
    "returned": model_text(f"{HEAD} {{ float16[b, a, 4] t = f.turns (x) y = MatMul (t, w) }}", TURNS),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_stock_session_opens_a_separated_transpose_and_gives_the_same_numbers(
    name: str, tmp_path: Path
) -> None:
    before, after = parse(CASES[name]), parse(CASES[name])
    assert run_passes(after, [separate_transposes]).total == 1
    path = tmp_path / "model.onnx"
    ir.save(after, path)
    assert opens(path)
    x = (np.arange(24).reshape(2, 3, 4) % 7 - 3).astype(np.float16)
    for expected, actual in zip(run(before, {"x": x}), run(after, {"x": x}), strict=True):
        assert_close(actual, expected)


def opens(path: Path) -> bool:
    command = [sys.executable, "-c", OPEN, str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_onnxruntime_still_crashes_without_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    ir.save(parse(CASES["call"]), path)
    assert not opens(path), "remove the pass for this version of onnxruntime"


@pytest.mark.parametrize(
    "text",
    [
        CASES["call"].replace("float16", "float"),  # onnxruntime inserts no Cast
        CASES["call"].replace("perm = [1, 0, 2]", "perm = [0, 1, 2]"),
        model_text(f"{HEAD} {{ {TURN} y = f.linear (t, w) }}", NORM),  # a node is between the two
        CASES["returned"].replace("float16", "float"),
    ],
    ids=["float32", "other_perm", "between", "returned_float32"],
)
def test_other_transposes_in_functions_stay(text: str) -> None:
    leaves(text, separate_transposes)


class Linear(torch.nn.Linear):
    """Externalized: a function of its own."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_an_externalized_layer_of_a_transposed_input_opens(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Linear(8, 8), Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x.transpose(0, 1)))

    model, x = Rows().to(dtype), torch.randn(3, 5, 8, dtype=dtype)
    shapes = ({0: torch.export.Dim("batch")},)
    program = convert(model, (x,), dynamic_shapes=shapes, externalize_modules=[ExternalizeSpec(Linear)])  # fmt: skip
    program.save(tmp_path / "model.onnx")
    assert opens(tmp_path / "model.onnx")
    assert program.run(torch.randn(2, 5, 8, dtype=dtype), kernels=False)[0].shape == (5, 2, 8)
