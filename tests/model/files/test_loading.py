"""What is wrong with a file is told with its name, before anything else trips over it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from coreai_onnx.debugging import inspect_model
from coreai_onnx.errors import LoadError, SessionError
from coreai_onnx.model.files.external_data import FileTensor
from coreai_onnx.model.files.loading import fault, load_model
from coreai_onnx.model.files.saving import save_models
from coreai_onnx.model.inventory import graphs
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.create import session
from tests.support.small_models import (
    counter_model,
    layers_model,
    linear_model,
    linear_weights,
    parse,
)
from tests.support.tolerances import assert_close

Change = Callable[[onnx.ModelProto], None]


def saved(folder: Path, model: ir.Model | None = None, *, external: bool = False) -> Path:
    path = folder / "m.onnx"
    model = linear_model() if model is None else model
    save_models({path: model}, folder / "m.onnx.data", external_data=external)
    return path


def changed(folder: Path, change: Change, *, external: bool = False) -> Path:
    path = saved(folder, external=external)
    proto = onnx.load(path, load_external_data=False)
    change(proto)
    path.write_bytes(proto.SerializeToString())
    return path


def weight(proto: onnx.ModelProto) -> onnx.TensorProto:
    return next(tensor for tensor in proto.graph.initializer if tensor.name == "weight")


def rewired(node: onnx.NodeProto, name: str) -> None:
    node.input[0] = name


def external(**entries: str) -> Change:
    """Say something else about where the weights are."""

    def change(proto: onnx.ModelProto) -> None:
        for entry in weight(proto).external_data:
            entry.value = entries.get(entry.key, entry.value)

    return change


def refused(path: Path, *, data: bool = True) -> str:
    """Return the error without the path, with which it has to begin."""
    with pytest.raises(LoadError) as caught:
        load_model(path, data=data)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert data is False or fault(path) == text
    return text.removeprefix(f"{path}: ")


@pytest.mark.parametrize("external", [False, True])
def test_a_whole_file(tmp_path: Path, external: bool) -> None:
    path = saved(tmp_path, external=external)
    model = load_model(path)
    tensor = model.graph.initializers["weight"].const_value
    assert isinstance(tensor, FileTensor) is external
    assert_close(tensor.numpy(), linear_weights()["weight"])
    assert fault(path) == ""


def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(tmp_path / "nowhere.onnx") == "no such file"
    assert refused(tmp_path) == "is a folder"
    path = saved(tmp_path)

    def locked(*args: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")  # to root, who runs tests, files are open

    monkeypatch.setattr(Path, "open", locked)
    assert refused(path) == "cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an ONNX model: the file is empty"),
        (b"no model at all", "is not an ONNX model, or cut short or damaged: make or fetch it"),
        (b"\x00" * 100, "is not an ONNX model"),
        (b"<!doctype html><html>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "run git lfs pull"),
        (b"PK\x03\x04rest", "is a zip archive"),
        (b"\x80\x02rest", "is a pickle"),
    ],
)
def test_what_is_no_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert message in refused(path)


def test_every_cut_of_a_file_is_told(tmp_path: Path) -> None:
    """Protobuf takes some cuts for whole messages; what is missing then is told."""
    path = saved(tmp_path)
    content = path.read_bytes()
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        refused(path)


def test_changed_bytes_never_raise_anything_else(tmp_path: Path) -> None:
    path = saved(tmp_path, layers_model())
    content, rng = path.read_bytes(), np.random.default_rng(0)
    told = 0
    for _ in range(400):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), 3):
            damaged[position] = rng.integers(0, 256)
        path.write_bytes(damaged)
        told += bool(fault(path))
    assert told > 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: setattr(m, "ir_version", 99), "its IR version is 99, the newest supported"),
        (lambda m: setattr(m.opset_import[0], "version", 99), "its opset is 99, the newest"),
        (lambda m: setattr(m.opset_import[0], "version", 0), "opset is 0; the lowest opset is 1"),
        (lambda m: m.opset_import.pop(), "it has no opset"),
        (lambda m: setattr(weight(m), "data_type", 77), "has the unknown data type 77"),
        (lambda m: setattr(weight(m), "raw_data", b"12345"), "has 5 bytes, its shape takes 2048"),
        (lambda m: weight(m).dims.insert(0, -8), "has the shape [-8, 8, 64]"),
        (lambda m: rewired(m.graph.node[1], "lost"), "reads 'lost', which nothing produces"),
        (lambda m: rewired(m.graph.node[0], "y"), "read each other in a circle"),
        (lambda m: m.graph.node[1].output.insert(0, "product"), "is a broken ONNX model"),
        (lambda m: setattr(m.graph.output[0], "name", "z"), "nothing produces the output 'z'"),
    ],
)  # fmt: skip
def test_broken_models(tmp_path: Path, change: Change, message: str) -> None:
    assert message in refused(changed(tmp_path, change))


def test_a_weight_of_too_few_numbers(tmp_path: Path) -> None:
    def numbers(proto: onnx.ModelProto) -> None:
        weight(proto).ClearField("raw_data")
        weight(proto).float_data.extend([1.0, 2.0])

    assert "weight 'weight'" in refused(changed(tmp_path, numbers))


def untyped(number: int) -> Change:
    def change(proto: onnx.ModelProto) -> None:
        proto.graph.input[0].type.tensor_type.elem_type = number

    return change


def test_inputs_of_unknown_types(tmp_path: Path) -> None:
    """A type that ONNX lacks is refused; one that is not said is left to who runs the model."""
    assert "99 is not a valid DataType" in refused(changed(tmp_path, untyped(99)))
    path = changed(tmp_path, untyped(0))
    assert "undefined" in str(inspect_model(path))
    OnnxProgram.load(path).optimize().save(tmp_path / "optimized.onnx")
    with pytest.raises(SessionError, match="onnxruntime"):
        session(path)
    proto = onnx.load(path)
    proto.graph.input[0].ClearField("type")
    path.write_bytes(proto.SerializeToString())
    OnnxProgram.load(path).optimize().save(tmp_path / "optimized.onnx")


@pytest.mark.parametrize("number", [99, 0, -1])
def test_casts_to_what_is_no_type(tmp_path: Path, number: int) -> None:
    def cast(proto: onnx.ModelProto) -> None:
        node = proto.graph.node[1]
        node.op_type = "Cast"
        del node.input[1:]
        node.attribute.append(onnx.helper.make_attribute("to", number))

    assert f"has the unknown data type {number}" in refused(changed(tmp_path, cast))


def test_a_broken_function_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path, layers_model())
    proto = onnx.load(path)
    proto.functions[0].node[0].input[0] = "lost"
    path.write_bytes(proto.SerializeToString())
    assert "function ai.coreai.module::Block is broken: square node" in refused(path)


def test_subgraphs_read_what_is_outside_of_them(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[n] x, bool c) => (float[n] y) {
      a = Neg(x)
      y = If<then_branch = t () => (float[n] p) { p = Abs(NAME) },
             else_branch = e () => (float[n] q) { q = Relu(x) }>(c) }"""
    path = saved(tmp_path, parse(text.replace("NAME", "a")))
    assert fault(path) == ""
    proto = onnx.load(path)
    proto.graph.node[1].attribute[0].g.node[0].input[0] = "b"
    path.write_bytes(proto.SerializeToString())
    assert "reads 'b', which nothing produces" in refused(path)


def test_nodes_out_of_order_are_brought_into_order(tmp_path: Path) -> None:
    def reversed_nodes(proto: onnx.ModelProto) -> None:
        nodes = list(proto.graph.node)[::-1]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)

    model = load_model(changed(tmp_path, reversed_nodes))
    assert [node.op_type for node in model.graph] == ["MatMul", "Add", "Reshape"]


KEYS = [
    *("coreai.states", "coreai.mutated_inputs"),
    *("coreai.range_constraints", "coreai.relations", "coreai.complex"),
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("text", ["{", "[1]", "3", '[{"input": "nobody", "output": "y"}]'])
def test_metadata_that_cannot_be_read(tmp_path: Path, key: str, text: str) -> None:
    model = linear_model()
    model.metadata_props[key] = text
    assert f"its metadata {key} cannot be read" in refused(saved(tmp_path, model))


@pytest.mark.parametrize("text", ['["nobody"]', '["x"]', '{"x": 1}'])
def test_complex_names_that_do_not_hold_pairs(tmp_path: Path, text: str) -> None:
    model = linear_model()
    model.metadata_props["coreai.complex"] = text
    assert "its metadata coreai.complex cannot be read" in refused(saved(tmp_path, model))


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("coreai.states", "[" * 100_000, "nested too deeply"),
        ("coreai.states", '[{"input": 3, "output": "y"}]', "has no text 'input'"),
        ("coreai.range_constraints", '{"n": {"min": "a"}}', "min of 'n' is 'a', not an integer"),
        ("coreai.range_constraints", '{"n": {"max": 1.5}}', "max of 'n' is 1.5, not an integer"),
        ("coreai.range_constraints", '{"n": [1, 2]}', "the bounds of 'n' are [1, 2]"),
        ("coreai.range_constraints", '{"a":' * 5000, "nested too deeply"),
        ("coreai.relations", '[{"holds": 3}]', "has no text 'holds'"),
        ("coreai.relations", f'[{{"holds": "{"n" * 100_000}"}}]', "has 100000 characters"),
    ],
)  # fmt: skip
def test_metadata_of_wrong_types(tmp_path: Path, key: str, text: str, message: str) -> None:
    model = linear_model()
    model.metadata_props[key] = text
    path = saved(tmp_path, model)
    assert message in refused(path)
    with pytest.raises(SessionError, match=key):
        session(path)


def test_states_are_checked_and_kept(tmp_path: Path) -> None:
    assert "coreai.states" in load_model(saved(tmp_path, counter_model())).metadata_props


# ── data files ───────────────────────────────────────────────────────────────────────────────


def test_a_missing_data_file(tmp_path: Path) -> None:
    path, data = saved(tmp_path, external=True), tmp_path / "m.onnx.data"
    data.unlink()
    assert f"weight 'weight' is in {data}, which does not exist" in refused(path)
    assert len(load_model(path, data=False).graph) == 3
    data.mkdir()
    assert "which is not a file" in refused(path)


@pytest.mark.parametrize("size", [0, 100, 2047])
def test_a_data_file_cut_short(tmp_path: Path, size: int) -> None:
    path = saved(tmp_path, external=True)
    os.truncate(tmp_path / "m.onnx.data", size)
    text = refused(path)
    assert f"is at bytes 0 to 2048 of {tmp_path / 'm.onnx.data'}, which has {size}" in text
    assert "truncated" in text
    load_model(path, data=False)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "-4"}, "has the offset -4"),
        ({"offset": "4 8"}, "has the offset 4 8"),
        ({"offset": "99999999999"}, "is at bytes 99999999999 to"),
        ({"length": "16"}, "takes 2048 bytes, but 16 of "),
        ({"length": "4096"}, "takes 2048 bytes, but 4096 of "),
        ({"location": ""}, "without a name"),
    ],
)
def test_data_at_impossible_places(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    assert message in refused(changed(tmp_path, external(**entries), external=True))


@pytest.mark.parametrize("place", ["../secret", "a/../../secret", "{}/secret", "./../m/../secret"])
@pytest.mark.parametrize("here", [False, True])
def test_data_outside_of_the_folder_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, here: bool
) -> None:
    """Also not for a file that is named without a folder: its folder is the current one."""
    (tmp_path / "secret").write_bytes(bytes(2048))
    folder = tmp_path / "m"
    folder.mkdir()
    path = changed(folder, external(location=place.format(tmp_path)), external=True)
    if here:
        monkeypatch.chdir(folder)
        path = Path("m.onnx")
    for data in (True, False):
        assert "outside of the model's folder, and is not read from there" in refused(
            path, data=data
        )


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(2048))
    folder = tmp_path / "m"
    folder.mkdir()
    path, data = saved(folder, external=True), folder / "m.onnx.data"
    data.rename(folder / "kept")
    data.symlink_to("kept")
    load_model(path)
    data.unlink()
    data.symlink_to(tmp_path / "secret")
    assert "outside of the model's folder" in refused(path)
    data.unlink()
    os.link(tmp_path / "secret", data)
    assert "which has other names (hard links)" in refused(path)


def test_data_in_a_folder_below_is_read_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = changed(tmp_path, external(location="data/weights"), external=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "m.onnx.data").rename(tmp_path / "data" / "weights")
    monkeypatch.chdir(tmp_path)
    model = load_model("m.onnx")
    monkeypatch.chdir("/")
    assert_close(model.graph.initializers["weight"].const_value.numpy(), linear_weights()["weight"])
    assert fault(path) == ""


def test_a_constant_in_a_data_file_is_brought_in(tmp_path: Path) -> None:
    """Of nodes and functions alike: onnx_ir tells neither where the file is."""
    array = np.arange(600, dtype=np.float32)
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "f": 1]>
    g () => (float[600] y) { a = Constant<value = float[1] {0.0}>()  b = f.f()  y = Add(a, b) }
    <domain: "f", opset_import: ["": 21]>
    f () => (c) { c = Constant<value = float[1] {0.0}>() }""")
    for node in (proto.graph.node[0], proto.functions[0].node[0]):
        tensor = node.attribute[0].t
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, "a"))
        onnx.external_data_helper.set_external_data(tensor, "weights")
        tensor.ClearField("raw_data")
    (tmp_path / "weights").write_bytes(array.tobytes())
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    model = load_model(path)
    nodes = [node for graph in graphs(model) for node in graph if node.op_type == "Constant"]
    assert [type(node.attributes["value"].value) for node in nodes] == [FileTensor, FileTensor]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    OnnxProgram({"main": model}).save(elsewhere / "m.onnx")
    (y,) = OnnxProgram.load(elsewhere / "m.onnx").run(kernels=False)
    assert_close(y, array * 2)


def test_warnings_of_the_reader_are_not_printed(
    tmp_path: Path, log_records: list[logging.LogRecord]
) -> None:
    refused(changed(tmp_path, lambda m: m.graph.node[1].input.insert(0, "lost")))
    assert not log_records
