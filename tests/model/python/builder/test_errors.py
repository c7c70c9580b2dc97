"""Errors name the line of the model file."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.errors import LoadError
from tests.model.python.packages import built

GRAPH = """
@model.graph(outputs={"y": FLOAT["n"]})
def main(x: FLOAT["n"]):
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    return op.Negg(x)", r"model.py:8: there is no operator 'Negg' .*did you mean Neg\?"),
        ("    return op.Add(x)", "model.py:8: Add takes 2 to 2 inputs, not 1"),
        ("    return op.Softmax(x, axes=1)", "model.py:8: Softmax has no attribute 'axes'"),
        ("    return op.Cast(x)", "model.py:8: Cast needs the attribute 'to'"),
        ("    return op.Softmax(x, axis='a')", "model.py:8: axis='a': INT is expected"),
        ("    return op.Add(x, weights['missing'])", "model.py:8: there is no weight 'missing'"),
        ("    return op.Add(x, object())", "model.py:8: .* must be a value of the graph"),
        ("    return x, x", "model.py:6: 2 values are returned, 1 declared"),
        ("    return op.Concat(x, [[1.0]], axis=0)", "model.py:8: Concat: "),
        ("    return op.Cast(x, to=INT64.dtype)", "model.py:8: Cast: .*elem type"),
        ("    return y", "model.py:8: NameError"),
        ("    return (", "model.py:8: .*never closed"),
        ("  return x\n    return x", "model.py:9: unindent|model.py:9: unexpected indent"),
    ],
)  # fmt: skip
def test_a_fault_has_its_line(body: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=message):
        built(GRAPH + body + "\n", tmp_path)
