"""Wherever a tensor is in a file, it is read from the model's folder only, and only as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from coreai_onnx.cli import main
from coreai_onnx.debugging import diff_models, inspect_model
from coreai_onnx.errors import LoadError, SessionError
from coreai_onnx.model.files.external_data import FileTensor, data_files
from coreai_onnx.model.files.loading import check_places, fault, load_model
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.create import session
from tests.model.files.test_loading import external, saved
from tests.support.small_models import linear_weights
from tests.support.tolerances import assert_close

SECRET = b"the secret of another folder".ljust(64, b"!")
Place = Callable[[onnx.ModelProto], onnx.TensorProto]


def host() -> onnx.ModelProto:
    """A model with an ``If`` in the graph and in a function's body."""
    return onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "f": 1]>
    g (float[n] x, bool c) => (float[n] y) {
      a = If<then_branch = t () => (float[n] p) { p = Abs(x) },
             else_branch = e () => (float[n] q) { q = Relu(x) }>(c)
      y = f.f(a, c) }
    <domain: "f", opset_import: ["": 21]>
    f (x, c) => (y) {
      y = If<then_branch = t () => (float[n] p) { p = Abs(x) },
             else_branch = e () => (float[n] q) { q = Relu(x) }>(c) }""")


def attribute(owner: onnx.NodeProto | onnx.FunctionProto, kind: str) -> onnx.AttributeProto:
    added = owner.attribute if isinstance(owner, onnx.NodeProto) else owner.attribute_proto
    return added.add(name="extra", type=getattr(onnx.AttributeProto, kind))


def branch(node: onnx.NodeProto) -> onnx.NodeProto:
    return node.attribute[0].g.node[0]


PLACES: dict[str, Place] = {
    "initializer": lambda m: m.graph.initializer.add(),
    "subgraph": lambda m: m.graph.node[0].attribute[0].g.initializer.add(),
    "subgraph of a function": lambda m: m.functions[0].node[0].attribute[0].g.initializer.add(),
    "attribute": lambda m: attribute(m.graph.node[0], "TENSOR").t,
    "attribute of several": lambda m: attribute(m.graph.node[0], "TENSORS").tensors.add(),
    "attribute in a function": lambda m: attribute(branch(m.functions[0].node[0]), "TENSOR").t,
    "default of an attribute": lambda m: attribute(m.functions[0], "TENSOR").t,
    "graph as a default": lambda m: attribute(m.functions[0], "GRAPH").g.initializer.add(),
    "graphs": lambda m: attribute(m.graph.node[0], "GRAPHS").graphs.add().initializer.add(),
    "sparse initializer": lambda m: m.graph.sparse_initializer.add().values,
    "indices": lambda m: m.graph.sparse_initializer.add().indices,
    "sparse attribute": lambda m: attribute(m.graph.node[0], "SPARSE_TENSOR").sparse_tensor.values,
    "training": lambda m: m.training_info.add().initialization.initializer.add(),
}  # fmt: skip


def crafted(folder: Path, place: str, location: str) -> Path:
    model = host()
    tensor = PLACES[place](model)
    tensor.name, tensor.data_type = "w", onnx.TensorProto.UINT8
    tensor.dims.append(len(SECRET))
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "m").mkdir()
    return tmp_path / "m"


@pytest.mark.parametrize("place", PLACES)
def test_no_place_of_a_tensor_reads_outside_of_the_folder(folder: Path, place: str) -> None:
    path = crafted(folder, place, "../secret")
    outside = "outside of the model's folder"
    for data in (True, False):
        with pytest.raises(LoadError, match=outside):
            load_model(path, data=data)
    for read in (OnnxProgram.load, inspect_model, lambda p: diff_models(p, p)):
        with pytest.raises(LoadError, match=outside):
            read(path)
    with pytest.raises(SessionError, match=outside):
        session(path)
    for command in (["optimize", "-o", str(folder / "out.onnx")], ["run"], ["inspect"]):
        assert main([command[0], str(path), *command[1:]]) == 2
    assert [file.name for file in folder.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("location", ["secret", "../secret", "a/../../secret", "{}/secret"])
def test_models_in_memory_read_in_the_current_folder_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    monkeypatch.chdir(folder)
    proto = onnx.load(
        crafted(folder, "subgraph", location.format(folder.parent)), load_external_data=False
    )
    for source in (proto, proto.SerializeToString()):
        with pytest.raises(SessionError, match=r"the given .*(outside of|which does not exist)"):
            session(source)
    (folder / "secret").write_bytes(SECRET)
    if location == "secret":
        check_places(proto)


@pytest.mark.parametrize("kind", ["link", "link of a folder", "hard link", "missing", "fifo"])
def test_what_else_a_location_may_be(folder: Path, kind: str) -> None:
    location = "w"
    if kind == "link":
        (folder / "w").symlink_to(folder.parent / "secret")
    elif kind == "link of a folder":
        (folder / "up").symlink_to(folder.parent)
        location = "up/secret"
    elif kind == "hard link":
        os.link(folder.parent / "secret", folder / "w")
    elif kind == "fifo":
        os.mkfifo(folder / "w")
    assert "weight 'w' is" in fault(crafted(folder, "subgraph of a function", location))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "9" * 30}, "has the offset 999"),
        ({"length": "-1"}, "has the length -1"),
        ({"offset": "٣"}, "has the offset ٣"),
        ({"offset": "9223372036854775807"}, "is at bytes 9223372036854775807"),
        ({"length": "9223372036854775807"}, "are assigned to it"),
        ({"location": "a\0b"}, "which no file can have"),
    ],
)
def test_positions_that_are_none(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    path = saved(tmp_path, external=True)
    proto = onnx.load(path, load_external_data=False)
    external(**entries)(proto)
    path.write_bytes(proto.SerializeToString())
    assert message in fault(path)


def test_two_locations_are_refused(folder: Path) -> None:
    path = crafted(folder, "initializer", "w")
    (folder / "w").write_bytes(SECRET)
    assert fault(path) == ""
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].external_data.add(key="location", value="../secret")
    path.write_bytes(proto.SerializeToString())
    assert "is said to be in two places" in fault(path)


def test_strings_in_a_data_file_are_refused(folder: Path) -> None:
    path = crafted(folder, "initializer", "w")
    (folder / "w").write_bytes(SECRET)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].data_type = onnx.TensorProto.STRING
    path.write_bytes(proto.SerializeToString())
    assert "strings cannot be in a data file" in fault(path)


@pytest.mark.parametrize("kind", ["TENSOR", "GRAPH"])
def test_attributes_without_a_value(folder: Path, kind: str) -> None:
    model = host()
    attribute(model.graph.node[0], kind)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    assert f"attribute 'extra' has no {kind[0].lower()}" in fault(path)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"biased", b"\xff\xfeased"))
    assert "has the input b'\\xff\\xfeased', not UTF-8" in fault(path)


# ── a data file in use ───────────────────────────────────────────────────────────────────────


def test_a_data_file_that_is_written_to_after_the_load_is_noticed(tmp_path: Path) -> None:
    path, data = saved(tmp_path, external=True), tmp_path / "m.onnx.data"
    program = OnnxProgram.load(path)
    content = data.read_bytes()
    with data.open("r+b") as file:
        file.write(b"another process")
    os.utime(data, ns=(0, 0))  # the clock of file systems is slow
    for use in (
        lambda: program.save(tmp_path / "copy.onnx"),
        lambda: program.save(path),
        program.run,
        program.to_proto,
    ):
        with pytest.raises(LoadError, match="was changed after the model was loaded"):
            use()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert len(data.read_bytes()) == len(content)


def test_a_data_file_that_is_cut_after_the_load_is_noticed(tmp_path: Path) -> None:
    program = OnnxProgram.load(saved(tmp_path, external=True))
    os.truncate(tmp_path / "m.onnx.data", 10)
    with pytest.raises(LoadError, match="was changed after the model was loaded"):
        program.save(tmp_path / "copy.onnx")


def test_a_data_file_that_is_replaced_is_read_as_it_was(tmp_path: Path) -> None:
    path, data = saved(tmp_path, external=True), tmp_path / "m.onnx.data"
    program = OnnxProgram.load(path)
    (tmp_path / "new").write_bytes(bytes(data.stat().st_size))
    (tmp_path / "new").replace(data)
    tensor = program.model.graph.initializers["weight"].const_value
    assert_close(tensor.numpy(), linear_weights()["weight"])


def test_weights_of_many_tensors_share_one_mapping(tmp_path: Path) -> None:
    path = saved(tmp_path, external=True)
    model = load_model(path)
    assert data_files(model) == [tmp_path / "m.onnx.data"]
    before = len(list(Path("/proc/self/fd").iterdir()))
    tensor = model.graph.initializers["weight"].const_value
    assert isinstance(tensor, FileTensor)
    assert tensor.tobytes() == tensor.numpy().tobytes() == linear_weights()["weight"].tobytes()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("dtype", ["INT4", "FLOAT4E2M1", "BFLOAT16", "BOOL", "COMPLEX64", "UINT2"])
def test_every_dtype_is_read_from_its_mapping(tmp_path: Path, dtype: str) -> None:
    import onnx_ir as ir

    kind = ir.DataType[dtype]
    array = np.random.default_rng(0).integers(0, 2, (33, 5)).astype(kind.numpy())
    proto = onnx.parser.parse_model('<ir_version: 13, opset_import: ["": 21]> g () => () {}')
    tensor = proto.graph.initializer.add(name="w", data_type=kind.value, dims=[33, 5])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w")
    tensor.external_data.add(key="offset", value="7")
    (tmp_path / "w").write_bytes(bytes(7) + ir.Tensor(array, dtype=kind).tobytes())
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    found = load_model(path).graph.initializers["w"].const_value
    assert isinstance(found, FileTensor)
    assert found.numpy().dtype == array.dtype
    assert np.array_equal(found.numpy(), array)


@pytest.mark.parametrize("dims", [[0, 2**62, 4], [0, 2**63 - 1], [2**60, 0, 2**60]])
@pytest.mark.parametrize("data", [False, True])
def test_sizes_that_no_array_can_have(tmp_path: Path, dims: list[int], data: bool) -> None:
    path = saved(tmp_path, external=True)
    proto = onnx.load(path, load_external_data=False)
    (weight,) = (x for x in proto.graph.initializer if x.name == "weight")
    del weight.dims[:], weight.external_data[1:]
    weight.dims.extend(dims)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(LoadError, match=r"weight 'weight' has .*, which no memory can hold"):
        load_model(path, data=data)
    with pytest.raises(SessionError, match="which no memory can hold"):
        session(path)


def test_a_pipe_in_place_of_a_data_file_is_not_read(tmp_path: Path) -> None:
    path = saved(tmp_path, external=True)
    (data,) = {Path(x.path) for x in weights_of(path)}
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(LoadError, match="is not a regular file"):
        weights_of(path)[0].numpy()


def weights_of(path: Path) -> list[FileTensor]:
    """Return the weights of a file that are in its data file, without checking that they are."""
    values = load_model(path, data=False).graph.initializers.values()
    return [x.const_value for x in values if isinstance(x.const_value, FileTensor)]
