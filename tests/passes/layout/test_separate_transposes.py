from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from coreai_onnx import ExternalizeSpec, convert
from coreai_onnx.passes import run_passes
from coreai_onnx.passes.layout.transposes_of_products import separate_transposes
from tests.passes.layout.test_transposes_after_products import OPEN
from tests.passes.rewriting import leaves, parse, run
from tests.support.tolerances import assert_close

WEIGHT = "float16[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}"
OPSETS = '<ir_version: 10, opset_import: ["": 23, "f": 1]>'
HEAD = f"{OPSETS} main (float16[a, b, 4] x) => (float16[b, a, 3] y) <{WEIGHT}>"
TURN = "float16[b, a, 4] t = Transpose <perm = [1, 0, 2]> (x)"


def function(name: str, body: str) -> str:
    return f'<domain: "f", opset_import: ["": 23, "f": 1]> {name} {body}'


def model_text(main: str, *functions: str) -> str:
    return "\n".join([main, *functions])


LINEAR = function("linear", "(x, w) => (y) { y = MatMul (x, w) }")
WIDE = function("wide", "(x, w) => (y) { c = Cast <to = 1> (x) d = Cast <to = 1> (w) m = MatMul (c, d) y = CastLike (m, x) }")  # fmt: skip
OUTER = function("outer", "(x, w) => (y) { y = f.linear (x, w) }")
TURNS = function("turns", "(x) => (y) { y = Transpose <perm = [1, 0, 2]> (x) }")
NORM = function("linear", "(x, w) => (y) { n = Mul (x, x) y = MatMul (n, w) }")
CASES = {
    "call": model_text(f"{HEAD} {{ {TURN} y = f.linear (t, w) }}", LINEAR),
    "cast": model_text(f"{HEAD} {{ {TURN} y = f.wide (t, w) }}", WIDE),
    "nested": model_text(f"{HEAD} {{ {TURN} y = f.outer (t, w) }}", OUTER, LINEAR),
    "returned": model_text(f"{HEAD} {{ float16[b, a, 4] t = f.turns (x) y = MatMul (t, w) }}", TURNS),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_stock_session_opens_it_and_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
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
def test_others_stay(text: str) -> None:
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
