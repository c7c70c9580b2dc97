"""Calls: attributes, defaults, optional inputs and outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.python.packages import source
from tests.support.small_models import parse


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ("y = Softmax(x)", "op.Softmax(x)"),
        ("y = Softmax <axis = -1>(x)", "op.Softmax(x)"),
        ("y = Softmax <axis = 0>(x)", "op.Softmax(x, axis=0)"),
        ("y = Cast <to = 10>(x)", "op.Cast(x, to=FLOAT16.dtype)"),
        ("y = LeakyRelu <alpha = 2.4e-7>(x)", "op.LeakyRelu(x, alpha=2.4e-7)"),
        ("y = Clip(x, , high)", "op.Clip(x, None, high)"),
        ("y, mask = Dropout(x)", "y, _ = op.Dropout(x, _outputs=2)"),
        ("a, y = TopK(x, k)", "_, y = op.TopK(x, k)"),
        ("y = d.Op <ints: ints = []>(x)", 'd.Op(x, ints=typed("INTS", []))'),
        ('y = d.Op <text = "a\\"b">(x)', """d.Op(x, text='a"b')"""),
        ("y = d.Op <floats = [1.0]>(x)", "d.Op(x, floats=[1.0])"),
    ],
)
def test_a_node_reads_like_this(node: str, text: str, tmp_path: Path) -> None:
    model = parse(f"""<ir_version: 10, opset_import: ["": 21, "d": 1]>
    g (float[n] x, float high, int64[1] k) => (float[m] y) {{ {node} }}""")
    assert text in source(model, tmp_path)


def test_tensors_in_attributes(tmp_path: Path) -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (int64[1] n) => (float[m] y) { y = ConstantOfShape <value = float[1] {2.5}>(n) }""")
    assert "op.ConstantOfShape(n, value=tensor([2.5], FLOAT))" in source(model, tmp_path)
