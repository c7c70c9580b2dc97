"""What files of each level hold, and that the table gives back what went in."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch

import coreai_onnx
from coreai_onnx import TorchConverter
from coreai_onnx.model.provenance.debug_info import (
    CLASS,
    HANDLES,
    KEYS,
    SCOPE,
    SOURCE,
    TABLE,
    DebugInfo,
    lines_by_handle,
    restore,
    written_as,
)
from coreai_onnx.model.provenance.source_lines import CODE
from coreai_onnx.program import OnnxProgram
from tests.models.zoo import named
from tests.support.small_models import layers_model, parse

LEVELS: tuple[DebugInfo, ...] = ("full", "compact", "none")


def properties(model: ir.Model) -> list[list[dict[str, str]]]:
    """What every node carries, graph by graph."""
    bodies: list[Any] = [model.graph, *model.functions.values()]
    return [[dict(node.metadata_props) for node in body.all_nodes()] for body in bodies]


def marked() -> ir.Model:
    """A model whose nodes say where they come from: two layers of one class, a third of another."""
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[n] x, bool c) => (float[n] y) {
      a = Neg(x)  b = Exp(a)
      d = If<then_branch = t () => (float[n] p) { p = Abs(b) },
             else_branch = e () => (float[n] q) { q = Relu(b) }>(c)
      e0 = Sqrt(d)  y = Identity(e0) }""")
    model.functions.update(layers_model().functions)
    places = [
        ("layers.0.act", "Act", "m.py:3"),
        ("layers.1.act", "Act", "m.py:3"),
        ("layers.2.act", "Other", "m.py:9"),
        ("layers.2.act", "Other", "n.py:1"),
        ("", "Model", ""),
        ("head", "", "m.py:3"),
    ]
    nodes = list(model.graph.all_nodes())
    for node, (scope, name, source) in zip(nodes, places, strict=False):
        node.name = f"{scope}.{node.op_type}_1" if scope else node.op_type
        values = zip(KEYS, (scope, name, source), strict=True)
        node.metadata_props.update({key: value for key, value in values if value})
    nodes[0].name = "renamed"  # a scope that the name does not tell
    nodes[0].metadata_props["mine"] = "kept"
    return model


def test_the_table_gives_back_what_went_in() -> None:
    model, expected = marked(), properties(marked())
    with written_as(model, "compact"):
        proto = ir.to_proto(model)
    assert properties(model) == expected
    assert TABLE not in model.metadata_props
    assert all(p.key == "mine" for n in proto.graph.node for p in n.metadata_props)
    loaded = ir.from_proto(proto)
    restore(loaded)
    assert properties(loaded) == expected
    assert TABLE not in loaded.metadata_props


def test_a_class_is_said_once_for_all_layers() -> None:
    model = marked()
    with written_as(model, "compact"):
        table = json.loads(model.metadata_props[TABLE])
    assert table["classes"]["layers.#.act"] == "Act"
    assert table["classes"]["layers.2.act"] == "Other"
    assert "layers.1.act" not in table["classes"]


@pytest.mark.parametrize("level", ["full", "none"])
def test_the_other_levels(level: Any) -> None:
    model = marked()
    with written_as(model, level):
        found = [props for body in properties(model) for props in body]
        assert TABLE not in model.metadata_props
    assert any(SOURCE in props for props in found) is (level == "full")
    assert properties(model) == properties(marked())


def test_a_failure_leaves_the_model_as_it_was() -> None:
    model = marked()
    with pytest.raises(RuntimeError), written_as(model, "compact"):
        raise RuntimeError
    assert properties(model) == properties(marked())


def test_an_unknown_level() -> None:
    with pytest.raises(ValueError, match="full, compact, none"), written_as(marked(), "all"):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"nodes":["9"],"sources":[],"odd":[]}', "[" * 100_000,
        '{"nodes":[["9"]],"sources":[],"odd":[],"classes":{}}',
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_left_alone(text: str) -> None:
    model = layers_model()
    model.metadata_props[TABLE] = text
    restore(model)
    assert model.metadata_props[TABLE] == text


def test_a_table_of_other_nodes_is_left_alone() -> None:
    model = marked()
    with written_as(model, "compact"):
        table = model.metadata_props[TABLE]
    other = layers_model()
    other.metadata_props[TABLE] = table
    restore(other)
    assert other.metadata_props[TABLE] == table
    assert not any(props for body in properties(other) for props in body)


def test_nodes_are_found_again_after_another_tool() -> None:
    """A node was added at the start, one removed at the end, and a function added."""
    program = coreai_onnx.convert(Layer().eval(), (torch.randn(2, 8),))
    expected = {node.name: dict(node.metadata_props) for node in program.model.graph}
    loaded = ir.from_proto(program.to_proto())
    graph = loaded.graph
    graph.insert_before(graph[0], ir.node("Identity", [graph.inputs[0]], name="added"))
    body = ir.Graph([], [], nodes=[], opset_imports={"": 21})
    loaded.functions[("other", "f", "")] = ir.Function("other", "f", graph=body, attributes=[])
    restore(loaded)
    found = {node.name: dict(node.metadata_props) for node in graph}
    assert not found.pop("added")
    assert found == expected
    assert all(props[SOURCE] for props in found.values())


@pytest.mark.parametrize(
    "table",
    [
        {"nodes": ["0*300000000"]},  # 2.4 GB of numbers
        {"nodes": ["0*-1,0*2"]},
        {"nodes": ["1,2,3"], "sources": [["x" * 100_000, ["1", "2", "3"]]]},
    ],
)
def test_a_table_that_promises_much_takes_no_memory(table: dict[str, Any]) -> None:
    """The table is left alone, and what it asks for is not allocated."""
    model = parse('<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) '
                  "{ a = Neg(x)  b = Neg(a)  y = Neg(b) }")  # fmt: skip
    text = json.dumps({"classes": {}, "odd": [], "sources": [], **table})
    model.metadata_props[TABLE] = text
    tracemalloc.start()
    restore(model)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * len(text) + 1_000_000
    assert model.metadata_props[TABLE] == text


def test_a_table_of_deep_json_is_left_alone() -> None:
    model = layers_model()
    model.metadata_props[TABLE] = "[" * 100_000
    restore(model)
    assert TABLE in model.metadata_props


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(self.norm(x))).softmax(-1).cumsum(-1)


def graph_bytes(path: Path) -> int:
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        tensor.ClearField("raw_data")
    return proto.ByteSize()


def test_files_of_a_program(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(Layer() for _ in range(6))).eval()
    program = coreai_onnx.convert(model, (torch.randn(2, 8),))
    sizes = {}
    for level in LEVELS:
        path = tmp_path / f"{level}.onnx"
        program.save(path, debug_info=level)
        sizes[level] = graph_bytes(path)
        carried = properties(OnnxProgram.load(path).model)
        assert (carried == properties(program.model)) is (level != "none")
    assert sizes["compact"] < 1.1 * sizes["none"]
    assert sizes["full"] > 1.3 * sizes["none"]
    program.save(tmp_path / "default.onnx")
    assert graph_bytes(tmp_path / "default.onnx") == sizes["compact"]
    first = next(iter(program.model.graph))
    assert first.metadata_props[SCOPE].startswith("0")
    assert first.metadata_props[CLASS]


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_table_is_a_small_part_of_a_real_graph(tmp_path: Path, name: str) -> None:
    """With the text of the source lines, which does not grow with the number of layers."""
    architecture = named(name)
    exported = architecture.export(architecture.module())
    program = TorchConverter().add_exported_program(exported).to_onnx().optimize()
    sizes = {}
    for level in LEVELS:
        program.save(tmp_path / f"{level}.onnx", debug_info=level)
        sizes[level] = graph_bytes(tmp_path / f"{level}.onnx")
    lines = len(program.model.metadata_props[CODE])
    assert sizes["none"] < sizes["compact"] - lines < 1.1 * sizes["none"]
    assert lines < 0.15 * sizes["none"]


@pytest.mark.parametrize(
    ("mode", "level"),
    [(None, "compact"), (TorchConverter.Mode.DEBUG, "full"), (TorchConverter.Mode.RELEASE, "none")],
)
def test_the_mode_of_a_converter(mode: TorchConverter.Mode | None, level: str) -> None:
    converter = TorchConverter(mode=mode)
    converter.add_exported_program(torch.export.export(Layer().eval(), (torch.randn(2, 8),)))
    assert converter.to_onnx().debug_info == level


@pytest.mark.parametrize("text", ["", "[", "[1]", "3", '{"a": "m.py:1"}', "[" * 100_000])
def test_unreadable_debug_handles_are_none(text: str) -> None:
    node = ir.node("Add", [])
    node.metadata_props[HANDLES] = text
    assert lines_by_handle(node) == {}
    node.metadata_props[HANDLES] = '{"1": "m.py:1   y = x"}'
    assert lines_by_handle(node) == {1: "m.py:1   y = x"}
