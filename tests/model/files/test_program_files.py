"""A program of several entrypoints is saved and loaded by one name."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from coreai_onnx.debugging import inspect_model
from coreai_onnx.errors import LoadError, SaveError, SessionError
from coreai_onnx.model.files.program_files import ENTRYPOINTS, files_of
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.create import session
from tests.support.small_models import linear_model


def program(*names: str) -> OnnxProgram:
    return OnnxProgram({name: linear_model(seed=i) for i, name in enumerate(names)})


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


NAMES = "m.onnx|m[1].onnx|m*?.onnx|m.v2.onnx|m|.onnx|é ü.onnx|a.b.c|-m.onnx".split("|")


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_loaded(tmp_path: Path, name: str, external: bool) -> None:
    saved = program("prefill", "decode", "a", "[x]", "v2")
    written = saved.save(tmp_path / name, external_data=external)
    decoy = tmp_path / (f"{Path(name).stem}.backup{Path(name).suffix}")
    decoy.write_bytes(linear_bytes())
    loaded = OnnxProgram.load(tmp_path / name)
    assert loaded.entrypoints == saved.entrypoints
    assert files_of(tmp_path / name) == written[:5]
    for entrypoint in saved.entrypoints:
        assert ENTRYPOINTS not in loaded.models[entrypoint].metadata_props
        weights = [p.models[entrypoint].graph.initializers["weight"] for p in (saved, loaded)]
        first, second = (value.const_value.tobytes() for value in weights)
        assert first == second
    assert set(inspect_model(tmp_path / name).files) == set(written)
    assert OnnxProgram.load(written[1]).entrypoints == ("decode",)


def linear_bytes() -> bytes:
    return program("main").to_proto().SerializeToString()


def test_a_missing_file_is_not_another_one(tmp_path: Path) -> None:
    for name in ("m.backup.onnx", "m.main.onnx"):
        (tmp_path / name).write_bytes(linear_bytes())
    (tmp_path / "m.damaged.onnx").write_bytes(b"damaged")
    for path in (tmp_path / "m.onnx", tmp_path / "m.nowhere" / "m.onnx", Path("\0.onnx")):
        with pytest.raises(LoadError, match="no such file"):
            OnnxProgram.load(path)


def test_a_missing_entrypoint_is_named(tmp_path: Path) -> None:
    program("a", "b").save(tmp_path / "m.onnx")
    (tmp_path / "m.b.onnx").unlink()
    with pytest.raises(LoadError, match=r"of which m.b.onnx is missing"):
        OnnxProgram.load(tmp_path / "m.onnx")
    (tmp_path / "m.b.onnx").write_bytes(b"damaged")
    with pytest.raises(LoadError, match=r"m\.b\.onnx: is not an ONNX model"):
        OnnxProgram.load(tmp_path / "m.onnx")
    (tmp_path / "m.b.onnx").write_bytes(linear_bytes())
    with pytest.raises(LoadError, match="no such file"):
        OnnxProgram.load(tmp_path / "m.onnx")


def test_a_file_of_an_older_save_is_left_out(tmp_path: Path) -> None:
    program("a", "b").save(tmp_path / "m.onnx")
    program("a", "c").save(tmp_path / "m.onnx")
    assert OnnxProgram.load(tmp_path / "m.onnx").entrypoints == ("a", "c")


def test_two_whole_programs_are_not_guessed(tmp_path: Path) -> None:
    program("a", "b").save(tmp_path / "m.onnx")
    program("c", "d").save(tmp_path / "m.onnx")
    with pytest.raises(LoadError, match="the folder has 2 programs of this name"):
        OnnxProgram.load(tmp_path / "m.onnx")


def test_a_renamed_file_is_no_part(tmp_path: Path) -> None:
    program("a", "b").save(tmp_path / "m.onnx")
    for name in "ab":
        (tmp_path / f"m.{name}.onnx").rename(tmp_path / f"n.{name}{name}.onnx")
    with pytest.raises(LoadError, match="no such file"):
        OnnxProgram.load(tmp_path / "n.onnx")


def test_a_file_that_would_be_loaded_instead_is_not_passed_over(tmp_path: Path) -> None:
    program("main").save(tmp_path / "m.onnx")
    with pytest.raises(SaveError, match="which would be loaded instead of"):
        program("a", "b").save(tmp_path / "m.onnx")
    assert names_in(tmp_path) == ["m.onnx"]


@pytest.mark.parametrize("name", ["a/b", "../a", "a\0b", "", "a\\b"])
def test_entrypoints_that_no_file_can_be_named_after(tmp_path: Path, name: str) -> None:
    with pytest.raises(SaveError, match="cannot be part of a file's name"):
        program("a", name).save(tmp_path / "m.onnx")
    assert not names_in(tmp_path)
    program("a", name).save(tmp_path / "m.onnx", entrypoint=name)


@pytest.mark.parametrize("text", ["{", "3", '["a", 3]', '["a", "../a"]', "[" * 10**5])
def test_a_list_of_entrypoints_that_is_none(tmp_path: Path, text: str) -> None:
    program("a", "b").save(tmp_path / "m.onnx")
    for path in (tmp_path / "m.a.onnx", tmp_path / "m.b.onnx"):
        proto = onnx.load(path)
        for entry in proto.metadata_props:
            entry.value = text if entry.key == ENTRYPOINTS else entry.value
        path.write_bytes(proto.SerializeToString())
    with pytest.raises(LoadError, match="no such file"):
        OnnxProgram.load(tmp_path / "m.onnx")
    assert OnnxProgram.load(tmp_path / "m.a.onnx").entrypoints == ("a",)


def test_saving_leaves_the_metadata_as_it_was(tmp_path: Path) -> None:
    saved = program("a", "b")
    before = {name: dict(model.metadata_props) for name, model in saved.models.items()}
    saved.save(tmp_path / "m.onnx")
    assert {n: dict(model.metadata_props) for n, model in saved.models.items()} == before


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    for name in ("a\0b.onnx", "a" * 300 + ".onnx"):
        with pytest.raises(LoadError, match=r"no such file|File name too long"):
            OnnxProgram.load(tmp_path / name)
        with pytest.raises(SessionError, match=r"no such file|File name too long"):
            session(tmp_path / name)
