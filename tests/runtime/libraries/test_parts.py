"""Delegated parts run in their backend's library, and on their bodies where it cannot run them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch.export import export

from coreai_onnx import session
from coreai_onnx.delegation import BackendDetails, CompileSpec, PreprocessResult, backend, to_edge
from coreai_onnx.errors import SessionError
from coreai_onnx.runtime.libraries.parts import add_entries, opened_with, usable_parts
from tests.delegation.demo_backend import Demo, Tagging
from tests.delegation.tiny_library import tiny_backend, tiny_library
from tests.support.tolerances import assert_close

aten = torch.ops.aten


class Foo(torch.nn.Module):
    def forward(self, a, x, b):
        y = torch.mm(a, x)
        z = y + b
        a = z - a
        return torch.mm(a, x).sin() + b


class Product(torch.nn.Module):
    def forward(self, a, x, b):
        return torch.mm(a, x) + b


PARTS = Tagging(aten.mm.default, aten.add.Tensor, backend_id="tiny")
ARGS = (torch.randn(2, 2), torch.randn(2, 2), torch.randn(2, 2))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_library(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Foo, with two parts."""
    return saved(tiny_backend(), tmp_path)


def saved(partitioner, folder: Path) -> Path:
    edge = to_edge(export(Foo(), ARGS, strict=True)).to_backend(partitioner)
    return edge.finish().save(folder / "model.onnx")[0]


def registered(content: dict[str, bytes], version: str = "1") -> None:
    """Register a backend whose bytes are chosen by the first operator of a part."""

    @backend("tiny")
    class Wrong(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            first = next(n for n in edge_program.graph.nodes if n.op == "call_function")
            return PreprocessResult(content[str(first.target)])

    Wrong.version = version


def changed(path: Path, old: bytes, new: bytes) -> Path:
    proto = onnx.load(path)
    for tensor in proto.graph.initializer:
        data = onnx.numpy_helper.to_array(tensor).tobytes()
        if old in data:
            array = np.frombuffer(data.replace(old, new), np.uint8)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.save(proto, path)
    return path


def test_a_file_runs_with_and_without_the_library(library: Path, model: Path) -> None:
    expected = Foo()(*ARGS)
    with warnings.catch_warnings(action="error"):
        assert_close(session(model).run(*ARGS)[0], expected)
        assert_close(session(model, custom_ops=[library]).run(*ARGS)[0], expected)


def test_the_library_runs_the_bytes_and_not_the_body(library: Path, tmp_path: Path) -> None:
    registered({"aten.mm.default": b"mm 0 1\nreturn 3"})
    edge = to_edge(export(Product(), ARGS)).to_backend(PARTS)
    path = edge.finish().save(tmp_path / "model.onnx")[0]
    a, x, b = ARGS
    assert_close(session(path).run(*ARGS)[0], a @ x + b)
    assert_close(session(path, custom_ops=[library]).run(*ARGS)[0], a @ x)


def test_bytes_that_were_changed_are_not_run(library: Path, model: Path) -> None:
    changed(model, b"sin 3", b"mm 00")
    with pytest.warns(RuntimeWarning, match=r"tiny::part_\d: .* their SHA-256 differs"):
        opened = session(model, custom_ops=[library])
    assert_close(opened.run(*ARGS)[0], Foo()(*ARGS))


def test_bytes_of_another_version_are_not_run(library: Path, tmp_path: Path) -> None:
    registered({"aten.mm.default": b"mm 0 1"}, version="2")
    path = saved(Tagging(aten.mm.default, backend_id="tiny"), tmp_path)
    with pytest.warns(RuntimeWarning, match="of version 2, this library runs version 1"):
        opened = session(path, custom_ops=[library])
    assert_close(opened.run(*ARGS)[0], Foo()(*ARGS))


def test_compile_specs_reach_the_op(tmp_path: Path) -> None:
    registered({"aten.mm.default": b"mm 0 1"}, version="7")
    specs = (CompileSpec("level", b"3"), CompileSpec("table", b"\xff\x00"))
    path = saved(Tagging(aten.mm.default, specs=specs, backend_id="tiny"), tmp_path)
    node = next(n for n in onnx.load(path).graph.node if n.domain == "tiny")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert attributes["compile_spec_level"] == b"3"
    assert attributes["compile_spec_table"] == [255, 0]
    assert attributes["backend_version"] == b"7"


def refuses(names: str):
    """Return what opens a model, but refuses the parts of a domain that are listed in names."""

    def open_model(parts):
        left = [n for d, some in parts.items() for n in some if f"{d}::{n}" in names.split()]
        if left:
            raise SessionError("cannot load") from RuntimeError(f"refused {names}")
        return parts

    return open_model


def test_only_parts_that_are_refused_run_on_their_bodies() -> None:
    with pytest.warns(RuntimeWarning, match="delegated parts run on their bodies"):
        kept = opened_with({"a": ["part_1", "part_12"], "b": ["part_1"]}, refuses("a::part_12"))
    assert kept == {"a": ["part_1"], "b": ["part_1"]}


def test_an_error_without_parts_is_raised() -> None:
    def broken(parts):
        raise SessionError("no such opset")

    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(SessionError, match="no such opset"),
    ):
        opened_with({"a": ["part_0"]}, broken)


def test_parts_beyond_an_entry_of_onnxruntime_run_on_their_bodies_with_a_warning() -> None:
    backend("tiny")(Demo)

    class Many(torch.nn.Module):
        def forward(self, x):
            for _ in range(3):
                x = x.sin() + x
            return x

    x = torch.randn(2)
    partitioner = Tagging(aten.sin.default, specs=(), backend_id="tiny")
    model = to_edge(export(Many(), (x,))).to_backend(partitioner).finish().onnx_program.model
    (part,) = (f for f in model.functions.values() if f.domain == "tiny")
    (call,) = (n for n in model.graph if n.domain == "tiny" and n.inputs[0].name == "x")
    for number in range(1, 1200):  # copies of a part, as of layers with other settings
        copy = part.clone()
        copy.name = f"part_{number}"
        model.functions[copy.identifier()] = copy
        node = ir.node(copy.name, list(call.inputs), domain="tiny", attributes=call.attributes)
        model.graph.append(node)
    with pytest.warns(RuntimeWarning, match=r"(\d+) of the 1200 parts of tiny run on their bodies"):
        found = usable_parts(model)
    text = ",".join(found["tiny"])
    assert 8180 < len(text) <= 8192
    entries = {}

    class Options:
        def add_session_config_entry(self, key, value):
            entries[key] = value

    add_entries(Options(), {**found, "b": []})
    assert entries == {"coreai.parts.tiny": text, "coreai.parts.b": ""}


def test_an_error_names_one_part() -> None:
    parts = {"a": ["part_1", "part_1.2", "part_12"]}
    for name in parts["a"]:
        with pytest.warns(RuntimeWarning, match="run on their bodies"):
            kept = opened_with(parts, refuses(f"a::{name}"))
        assert kept == {"a": [other for other in parts["a"] if other != name]}
