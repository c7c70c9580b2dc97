"""Defects of onnxruntime, as the installed release has them.

Sessions that may crash open in processes of their own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from coreai_onnx.runtime.sessions.sources import ModelSource
from coreai_onnx.targets.defects import (
    FIRST_OPSET_WITHOUT_RANDOM,
    LOWEST,
    LOWEST_SCORE,
    disabled_optimizers,
)

CRASHES = ["MatmulTransposeFusion"]
HEAD = '<ir_version: 10, opset_import: ["": 21, "f": 1]>\n'
MODEL = """main ({kind}[a, b, 4] x) => ({result}[b, a, 3] y)
<{result}[4, 3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}}, {kind}[b, a, 4] t, {result}[b, a, 4] c>
{{ t = Transpose <perm = {perm}> (x)  {body} }}"""
CAST = "c = Cast <to = 1> (t)  y = MatMul (c, w)"
CALL = """y = f.linear (t, w)
}
<opset_import: ["": 21], domain: "f"> linear (x, w) => (y) { y = MatMul (x, w) """
OPEN = """
import sys, numpy, coreai_onnx
session = coreai_onnx.session(sys.argv[1], kernels=False)
print(session.run(numpy.ones((5, 2, 4), numpy.float16))[0].shape)
"""


def proto(kind: str, body: str = "y = MatMul (t, w)", perm: str = "[1, 0, 2]") -> onnx.ModelProto:
    result = "float" if "Cast" in body else kind
    text = MODEL.format(kind=kind, result=result, body=body, perm=perm)
    if "Cast" not in body:
        text = text.replace(f", {result}[b, a, 4] c>", ">")
    return onnx.parser.parse_model(HEAD + text)


@pytest.mark.parametrize(
    "model",
    [proto("float16"), proto("bfloat16", CAST), proto("float16", CALL)],
    ids=["float16", "cast", "call"],
)
def test_the_optimizer_that_crashes_is_disabled(model: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "model.onnx")
    for source in (model, model.SerializeToString(), tmp_path / "model.onnx"):
        assert disabled_optimizers(ModelSource(source).graph()) == CRASHES


@pytest.mark.parametrize(
    "model",
    [
        proto("float"),
        proto("float16", perm="[0, 1, 2]"),
        onnx.parser.parse_model(HEAD + "main (float[2] x) => (float[2] y) { y = Neg (x) }"),
    ],
    ids=["float32", "other_perm", "no_product"],
)
def test_other_models_keep_all_optimizers(model: onnx.ModelProto) -> None:
    assert disabled_optimizers(ir.from_proto(model)) == []


def test_a_model_that_is_not_read_goes_without_it(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"\xff")
    assert ModelSource(tmp_path / "broken.onnx").graph() is None
    assert ModelSource(tmp_path / "missing.onnx").graph() is None
    assert disabled_optimizers(None) == CRASHES


@pytest.mark.parametrize("body", ["y = MatMul (t, w)", CALL], ids=["product", "call"])
def test_a_session_opens_what_crashes_a_stock_one(body: str, tmp_path: Path) -> None:
    onnx.save(proto("float16", body), tmp_path / "model.onnx")
    command = [sys.executable, "-c", OPEN, str(tmp_path / "model.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(2, 5, 3)"


@pytest.mark.parametrize("op", ["RandomNormal", "RandomUniform"])
def test_random_operators_lost_their_kernels(op: str) -> None:
    def opened(opset: int) -> ort.InferenceSession:
        model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": {opset}]>
            main () => (float[4] y) {{ y = {op} <shape = [4]> () }}""")
        return ort.InferenceSession(model.SerializeToString())

    assert opened(FIRST_OPSET_WITHOUT_RANDOM - 1).run(None, {})[0].shape == (4,)
    with pytest.raises(Exception, match=rf"Could not find an implementation for {op}\("):
        opened(FIRST_OPSET_WITHOUT_RANDOM)


def test_attention_takes_the_lowest_number_for_minus_infinity() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 23]>
        main (float[1, 1, 1, 2] q, float[1, 1, 2, 2] k, float[1, 2] m) => (float[a, b, c, d] y)
        { y = Attention (q, k, k, m) }""")
    session = ort.InferenceSession(model.SerializeToString())
    feeds = {"q": np.ones((1, 1, 1, 2), np.float32), "k": np.ones((1, 1, 2, 2), np.float32)}
    for mask, result in ((LOWEST, 0.0), (LOWEST_SCORE, 1.0)):
        (y,) = session.run(None, feeds | {"m": np.full((1, 2), mask, np.float32)})
        assert y.ravel().tolist() == [result, result]
