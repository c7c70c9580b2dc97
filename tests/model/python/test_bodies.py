"""Statements: names, comments, loops."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from coreai_onnx.model.provenance.source_lines import CODE, code_entry
from coreai_onnx.model.python.model_text import ModelText
from tests.model.python.modules import layered
from tests.model.python.packages import source
from tests.support.small_models import parse


def test_layers_are_a_loop_over_indexed_weights(tmp_path: Path) -> None:
    text = source(layered(32), tmp_path)
    assert "    for i in range(32):\n" in text
    assert 'block(x, weights[f"layers.{i}"])' in text
    assert len(text.splitlines()) < 40


def test_comments_say_where_lines_come_from(tmp_path: Path) -> None:
    model = layered(1)
    model.metadata_props[CODE] = code_entry({"model.py:6": "hidden = x @ self.weight"})
    text = source(model, tmp_path)
    assert "    # model.py:6: hidden = x @ self.weight\n" in text
    assert "    # model.py:4\n" in text


def test_many_results_have_one_name(tmp_path: Path) -> None:
    names = [f"p{i}" for i in range(9)]
    model = parse(f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[9] x) => (float[1] y)
    {{ {", ".join(names)} = Split <num_outputs = 9>(x)  y = Add(p3, p7) }}""")
    text = source(model, tmp_path)
    assert "return op.Add(p0_parts[3], p0_parts[7])" in text


def test_inputs_and_constants_can_be_outputs(tmp_path: Path) -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[n] x) => (float[n] x, float[1] one, float[n] y) <float[1] one = {1.0}>
    { y = Neg(x) }""")
    assert 'return x, weights["one"], op.Neg(x)' in source(model, tmp_path)


def long_lived(count: int) -> ir.Model:
    """A chain in which every value is used once more, in reverse, at the end."""
    lines = ["v_0 = Neg(x)"]
    lines += [f"v_{i} = {'Exp' if i % 3 else 'Abs'}(v_{i - 1})" for i in range(1, count)]
    lines += ["s_0 = Neg(v_0)"] + [f"s_{i} = Add(s_{i - 1}, v_{i})" for i in range(1, count)]
    text = "\n".join([*lines, f"y = Neg(s_{count - 1})"])
    return parse(f"""<ir_version: 10, opset_import: ["": 21]>
    g (float[n] x) => (float[n] y) {{{text}}}""")


def test_twice_the_nodes_are_twice_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []

    def hash_of(value: ir.Value) -> int:
        hashed.append(value)
        return id(value) >> 4

    work = []
    for model in (long_lived(200), long_lived(400)):
        with monkeypatch.context() as patch:
            patch.setattr(ir.Value, "__hash__", hash_of)
            ModelText(model).lines("title")
        work.append(len(hashed))
        hashed.clear()
    assert work[1] < 2.2 * work[0]
