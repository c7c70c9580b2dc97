"""``model.names.json``."""

from __future__ import annotations

import json
from pathlib import Path

from coreai_onnx import from_python
from coreai_onnx.model.python.record import text_of
from tests.model.python.modules import layered
from tests.model.python.packages import rebuilt


def test_names_and_origins_come_back(tmp_path: Path) -> None:
    model = layered(3)
    again = rebuilt(model, tmp_path).model
    for left, right in zip(model.graph, again.graph, strict=True):
        assert left.name == right.name
        assert left.metadata_props == right.metadata_props
        assert left.outputs[0].name == right.outputs[0].name


def test_one_node_is_one_line(tmp_path: Path) -> None:
    rebuilt(layered(3), tmp_path)
    text = (tmp_path / "written" / "model.names.json").read_text()
    assert sum('"layers.2.' in line for line in text.splitlines()) >= 4
    assert text_of(json.loads(text)) == text


def test_nodes_that_stay_keep_their_names_in_an_edited_model(tmp_path: Path) -> None:
    model = layered(3)
    rebuilt(model, tmp_path)
    path = tmp_path / "written" / "model.py"
    path.write_text(path.read_text().replace("op.Relu(", "op.Tanh("))
    names = [node.name for node in from_python(path.parent).model.graph]
    expected = [node.name for node in model.graph if node.op_type != "Relu"]
    assert [name for name in names if name in expected] == expected
    assert len(set(names)) == len(names)
