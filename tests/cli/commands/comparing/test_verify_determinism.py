"""``coreai-onnx verify-determinism``."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.cli import main
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import parse

TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[batch, 4] x) => (float[batch, 4] y)
{{ n = Shape <end = 1>(x)  f = Cast <to = 1>(n)  z = Neg(x)  y = {last} }}"""


def test_the_exit_code_says_whether_bits_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "m.onnx")
    words = ["verify-determinism", path, "--dim", "batch=5", "--no-kernels"]
    OnnxProgram({"main": parse(TEXT.format(last="Abs(z)"))}).save(path)
    assert main(words) == 0
    assert "0 bits differ in" in capsys.readouterr().out
    OnnxProgram({"main": parse(TEXT.format(last="Add(z, f)"))}).save(path)
    assert main(words) == 1
    assert "row 0 in a batch of 2  Add" in capsys.readouterr().out
    assert main([*words, "--axis", "threads"]) == 0


def test_a_mask_of_another_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (int64[batch, seq] input_ids, int64[batch, total] attention_mask) => (int64[batch] y)
    { axes = Constant<value_ints = [1]>() a = ReduceSum<keepdims = 0>(input_ids, axes)
      b = ReduceSum<keepdims = 0>(attention_mask, axes) y = Add(a, b) }"""
    path = str(tmp_path / "m.onnx")
    OnnxProgram({"main": parse(text)}).save(path)
    words = ["verify-determinism", path, "--no-kernels"]
    assert main([*words, "--dim", "seq=3", "--dim", "total=3"]) == 0
    assert main([*words, "--dim", "seq=3"]) == 2
    assert "attention_mask has 2 columns for 3 tokens" in capsys.readouterr().err
