"""Tests of the contents of a model as text: parts, nodes, operators."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.debugging.diff.fingerprints import graph_digest
from coreai_onnx.debugging.diff.inspection import histogram, inspect_model, node_listing
from coreai_onnx.errors import LoadError
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import layers_model, linear_model, parse


def test_files_with_their_sizes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": linear_model()}).save(path, external_data=True)
    inspection = inspect_model(path)
    assert inspection.files == {path: path.stat().st_size, tmp_path / "m.onnx.data": 2048}
    assert "2.0 KiB" in str(inspection)


def test_a_missing_data_file_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    OnnxProgram({"main": linear_model()}).save(path, external_data=True)
    (tmp_path / "m.onnx.data").unlink()
    inspection = inspect_model(path)
    assert list(inspection.files) == [path, tmp_path / "m.onnx.data"]
    assert ["m.onnx.data", "missing"] in [
        [Path(words[0]).name, *words[1:]]
        for words in map(str.split, str(inspection).splitlines())
        if words
    ]
    assert "MatMul" in str(inspect_model(path))


def test_interface_composites_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = layers_model()
    model.metadata_props["note"] = "n" * 200
    OnnxProgram({"main": model}).save(path)
    lines = [line.split() for line in str(inspect_model(path)).splitlines()]
    assert ["ai.coreai.user::square", "5"] in lines
    assert ["coreai.version", "0.1.0"] in lines
    assert ["note", "n" * 99 + "…"] in lines
    assert ["input", "x", "float32[batch,", "4]"] in lines


def test_several_entrypoints(tmp_path: Path) -> None:
    models = {"a": layers_model(), "b": linear_model()}
    for name, model in models.items():
        model.metadata_props["coreai.entrypoint"] = name
    OnnxProgram(models).save(tmp_path / "m.onnx")
    inspection = inspect_model(tmp_path / "m.onnx")
    assert [path.name for path in inspection.files] == ["m.a.onnx", "m.b.onnx"]
    assert "entrypoint a:" in str(inspection)
    assert "entrypoint b:" in str(inspection)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such file"):
        inspect_model(tmp_path / "m.onnx")


def test_nodes_with_their_lines() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["": 21, "ai.coreai": 1]>
    g (float[n, 4] x, bool c) => (float[n, 4] y) {
        [a] h = Gelu<approximate = "tanh">(x)  [b] k = ai.coreai.twice(h)
        [c] y = If(c) <then_branch = t () => (float[n, 4] p) { p = Neg(k) },
                       else_branch = e () => (float[n, 4] q) { q = Abs(k) }> }
    <domain: "ai.coreai", opset_import: ["": 21]> twice (i) => (o) { o = Add(i, i) }""",
        {"coreai.code": {"m.py": {"7": "return self.act(x)"}}},
    )
    for node in list(model.graph)[:2]:
        node.metadata_props.update({"coreai.scope": "mlp.act", "coreai.class": "GELU"})
        node.metadata_props["coreai.source"] = "m.py:7"
    assert (
        node_listing(model)
        == """\
# Module mlp.act (GELU)
# File m.py, line 7, code: return self.act(x)
h = Gelu(x, approximate=tanh)
k = ai.coreai::twice(h)

y: float32[n, 4] = If(c, else_branch=graph {}, then_branch=graph {})
    p: float32[n, 4] = Neg(k)
    q: float32[n, 4] = Abs(k)

function ai.coreai::twice(i)
  o = Add(i, i)""".format(*_digests(model))
    )


def _digests(model):
    choice = list(model.graph)[2]
    branches = (choice.attributes[name] for name in ("else_branch", "then_branch"))
    return [graph_digest(branch.value)[:12] for branch in branches]


def test_names_cannot_control_a_terminal() -> None:
    model = parse(
        '<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) { y = Neg(x) }'
    )
    model.graph[0].metadata_props["coreai.scope"] = "a\x1b[2J\nb"
    assert "\x1b" not in node_listing(model)
    assert len(node_listing(model).splitlines()) == 2


def saved(tmp_path: Path) -> tuple[Path, Path]:
    layers, linear = tmp_path / "layers.onnx", tmp_path / "linear.onnx"
    OnnxProgram({"main": layers_model()}).save(layers)
    OnnxProgram({"main": linear_model()}).save(linear)
    return layers, linear


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_one_file_with_bars(tmp_path: Path) -> None:
    layers, _ = saved(tmp_path)
    found = rows(histogram([layers]))
    assert ["ai.coreai.user::square", "5", "█" * 40] in found
    assert ["Relu", "2", "█" * 16] in found
    assert ["all", "8"] in found


def test_two_files_with_the_difference(tmp_path: Path) -> None:
    found = rows(histogram(saved(tmp_path)))
    assert found[0] == ["operator", "layers.onnx", "linear.onnx", "difference"]
    assert ["ai.coreai.user::square", "5", "0", "-5"] in found
    assert ["MatMul", "0", "1", "1"] in found
    assert ["all", "8", "3", "-5"] in found


def test_neither_one_nor_two(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not 0"):
        histogram([])
    with pytest.raises(LoadError):
        histogram([tmp_path / "nowhere.onnx"])
