"""The quickstart says what it promises, and what it says holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from coreai_onnx.runtime import kernels_built


@pytest.mark.slow
def test_the_whole_road_on_real_weights(repo: Path, tmp_path: Path) -> None:
    file = tmp_path / "minilm.onnx"
    command = [sys.executable, "tools/quickstart.py", "--output", str(file), "--rounds", "2"]
    result = subprocess.run(
        command,
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(repo)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    said = result.stdout

    composites = dict(re.findall(r"^  ai\.coreai::(\w+)\s+(\d+)$", said, re.MULTILINE))
    assert composites == {
        "scaled_dot_product_attention": "6",
        "layer_norm": "1",
        "skip_layer_norm": "12",
        "gelu": "6",
        "linalg_vector_norm": "1",
    }
    assert re.search(
        r"^  graph-surgeon pass\s+rewrites\n  -+  -+\n  \w+\s+\d+$", said, re.MULTILINE
    )

    executions = ["bodies", "kernels"] if kernels_built() else ["bodies"]
    for shape in (r"\[6, 16\]", r"\[4, 128\]"):
        for execution in executions:
            assert re.search(rf"^  {shape} +{execution} .* ok$", said, re.MULTILINE)
        for execution in ("torch eager", *executions):
            row = rf"^  {shape} +{execution} +[\d.]+ +[\d.]+ +[\d.]+x$"
            assert re.search(row, said, re.MULTILINE), execution

    assert re.search(r"playing the guitar.* 0\.\d\d +Someone performs music", said)
    assert re.search(r"cat sleeps.* 0\.\d\d +A kitten is napping", said)
    assert re.search(r"interest rates.* 0\.\d\d +Borrowing money", said)
    assert str(file) in said
    assert "Netron" in said

    model = onnx.load(file)
    onnx.checker.check_model(model)
    dims = [d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim]
    assert dims == ["batch", "seq"]
    assert [o.name for o in model.graph.output] == ["sentence_embedding"]
