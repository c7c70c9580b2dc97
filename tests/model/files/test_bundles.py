"""Programs in folders with a manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.errors import LoadError, SaveError
from coreai_onnx.model.files.bundles import DATA, save_bundle, shared_states
from coreai_onnx.model.files.program_files import MANIFEST, files_of
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import cache_model, counter_model, linear_model, parse, rows_model
from tests.support.tolerances import assert_close


def program() -> OnnxProgram:
    """Three entrypoints, not in alphabetical order; two were made separately, of equal weights."""
    return OnnxProgram(
        {"prefill": linear_model(64), "decode": linear_model(64), "count": counter_model()}
    )


def manifest(folder: Path) -> Any:
    return json.loads((folder / MANIFEST).read_text())


def test_a_bundle_is_loaded_in_the_order_of_staging(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    written = program().save_bundle(folder)
    assert {path.name for path in written} == {path.name for path in folder.iterdir()}
    assert all(path.is_file() for path in written)
    loaded = OnnxProgram.load(folder)
    assert loaded.entrypoints == ("prefill", "decode", "count")
    assert [file.name for file in files_of(folder)] == ["prefill.onnx", "decode.onnx", "count.onnx"]
    x = np.ones((2, 64), np.float32)
    for name in ("prefill", "decode"):
        wanted = program().run(x, entrypoint=name, kernels=False)[0]
        assert_close(loaded.run(x, entrypoint=name, kernels=False)[0], wanted)


def test_equal_weights_are_stored_once(tmp_path: Path) -> None:
    program().save_bundle(tmp_path / "bundle")
    OnnxProgram({"one": linear_model(64)}).save_bundle(tmp_path / "one")
    assert (tmp_path / "bundle" / DATA).read_bytes() == (tmp_path / "one" / DATA).read_bytes()


def test_what_the_manifest_says(tmp_path: Path) -> None:
    OnnxProgram({"read": cache_model(), "write": cache_model()}).save_bundle(tmp_path / "bundle")
    content = manifest(tmp_path / "bundle")
    first = content["entrypoints"][0]
    assert (first["name"], first["file"]) == ("read", "read.onnx")
    assert first["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", "seq"]}]
    assert first["outputs"] == [{"name": "y", "dtype": "float32", "shape": ["batch"]}]
    assert first["states"] == [{"name": "cache", "dtype": "float32", "shape": ["batch", "past"]}]
    assert content["shared_states"] == {"cache": ["read", "write"]}


def test_an_earlier_bundle_is_replaced_on_request(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    program().save_bundle(folder)
    with pytest.raises(SaveError, match="exists and is not empty"):
        program().save_bundle(folder)
    OnnxProgram({"one": linear_model()}).save_bundle(folder, overwrite=True)
    assert OnnxProgram.load(folder).entrypoints == ("one",)
    assert not (folder / "prefill.onnx").exists()


def test_a_bundle_is_replaced_by_itself(tmp_path: Path) -> None:
    """Its weights are mapped while they are written."""
    folder = tmp_path / "bundle"
    program().save_bundle(folder)
    data = (folder / DATA).read_bytes()
    OnnxProgram.load(folder).save_bundle(folder, overwrite=True)
    assert (folder / DATA).read_bytes() == data
    assert OnnxProgram.load(folder).entrypoints == program().entrypoints


def test_nothing_is_written_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match=r"entrypoint 'a/b' cannot be a file's name"):
        OnnxProgram({"a/b": linear_model()}).save_bundle(tmp_path / "bundle")
    with pytest.raises(SaveError, match="there is no folder"):
        program().save_bundle(tmp_path / "no" / "bundle")
    broken = linear_model()
    broken.graph.initializers["weight"].const_value = ir.LazyTensor(
        _no_memory, dtype=ir.DataType.FLOAT, shape=ir.Shape([64, 64]), name="weight"
    )
    with pytest.raises(SaveError, match="cannot allocate"):
        OnnxProgram({"one": linear_model(), "two": broken}).save_bundle(tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def _no_memory() -> Any:
    raise MemoryError("cannot allocate")


def test_states_that_differ_are_refused() -> None:
    other = cache_model()
    other.graph.inputs[1].shape = ir.Shape(["batch", "past", 3])
    with pytest.raises(SaveError, match=r"'cache' is float32\[batch, past\] in a and .* in b"):
        shared_states({"a": cache_model(), "b": other})
    changed = counter_model()
    changed.graph.initializers["count"].const_value = ir.tensor(np.array([5], np.float32))
    with pytest.raises(SaveError, match="'count' starts from different values in a, b"):
        shared_states({"a": counter_model(), "b": changed})


def test_a_state_that_another_entrypoint_reads() -> None:
    reads = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x{}) => (float[n] y) {} {{ y = Mul(x, count) }}"""
    as_input = parse(reads.format(", float[1] count", ""))
    assert shared_states({"a": counter_model(), "b": as_input}) == {"count": ["a", "b"]}
    constant = parse(reads.format("", "<float[1] count = {1.0}>"))
    with pytest.raises(SaveError, match="'count' of a is a constant in b"):
        shared_states({"a": counter_model(), "b": constant})


def test_states_of_one_entrypoint_are_not_shared(tmp_path: Path) -> None:
    save_bundle({"a": rows_model(), "b": linear_model()}, tmp_path / "bundle")
    assert manifest(tmp_path / "bundle")["shared_states"] == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / MANIFEST).unlink(), "is a folder without a coreai_manifest.json"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "is not a manifest"),
        (lambda folder: (folder / MANIFEST).write_text("[]"), "is not a manifest"),
        (lambda folder: (folder / "decode.onnx").unlink(), r"decode\.onnx is missing"),
        (lambda folder: (folder / DATA).unlink(), "does not exist"),
        (lambda folder: edit(folder, version=2), "version 2"),
        (lambda folder: edit(folder, entrypoints=[]), "names no entrypoints"),
        (
            lambda folder: edit(folder, entrypoints=[{"name": "a", "file": "../a.onnx"}]),
            "outside of the folder",
        ),
        (
            lambda folder: edit(folder, entrypoints=[{"name": "a", "file": 3}]),
            "outside of the folder",
        ),
    ],
)
def test_broken_bundles(tmp_path: Path, change: Any, message: str) -> None:
    folder = tmp_path / "bundle"
    program().save_bundle(folder)
    change(folder)
    with pytest.raises(LoadError, match=message):
        OnnxProgram.load(folder)


def edit(folder: Path, **changes: Any) -> None:
    (folder / MANIFEST).write_text(json.dumps(manifest(folder) | changes))
