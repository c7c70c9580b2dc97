"""Files and folders appear complete or not at all; pipes and devices are written to."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import onnx
import pytest

from coreai_onnx.errors import SaveError
from coreai_onnx.model.files import new_files
from coreai_onnx.model.files.loading import fault
from coreai_onnx.model.files.new_files import all_or_nothing, check_new, file_fault, new_folder
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import linear_model


def program() -> OnnxProgram:
    return OnnxProgram({"main": linear_model()})


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o444])
def test_permissions_of_a_file_that_is_replaced_stay(tmp_path: Path, permissions: int) -> None:
    path, data = tmp_path / "m.onnx", tmp_path / "m.onnx.data"
    program().save(path, external_data=True)
    path.chmod(permissions)
    data.chmod(0o600)
    program().save(path, external_data=True)
    assert mode(path) == permissions
    assert mode(data) == 0o600


def test_a_first_data_file_is_as_private_as_its_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    program().save(path)
    path.chmod(0o600)
    program().save(path, external_data=True)
    assert mode(tmp_path / "m.onnx.data") == 0o600


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed(tmp_path: Path, there: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real.onnx", tmp_path / "m.onnx"
    if there:
        real.write_bytes(b"old")
        real.chmod(0o600)
    link.symlink_to(Path("elsewhere") / "real.onnx")
    program().save(link, external_data=True)
    assert link.is_symlink()
    assert fault(link) == ""
    assert (mode(real) == 0o600) is there
    assert names_in(tmp_path) == ["elsewhere", "m.onnx", "m.onnx.data"]
    assert names_in(real.parent) == ["real.onnx"]


def test_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").symlink_to("m.onnx")
    with pytest.raises(SaveError, match="symbolic links"):
        program().save(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").is_symlink()


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    program().save(path)
    reader.join()
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert onnx.load_from_string(read[0]).graph.node
    assert names_in(tmp_path) == ["pipe"]


def test_an_open_pipe_is_written_to_by_its_number() -> None:
    """As by ``/dev/stdout`` of a command whose output another one reads."""
    reading, writing = os.pipe()
    program().save(f"/dev/fd/{writing}")
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        assert onnx.load_from_string(file.read()).graph.node


def test_devices_stay_devices(tmp_path: Path) -> None:
    for name, link in (("/dev/null", "null"), ("/dev/full", "full")):
        (tmp_path / link).symlink_to(name)
    before = names_in(Path("/dev"))
    program().save("/dev/null")
    program().save(tmp_path / "null")
    for path in (Path("/dev/full"), tmp_path / "full"):
        with pytest.raises(SaveError, match="No space left on device"):
            program().save(path)
        assert stat.S_ISCHR(path.stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert names_in(Path("/dev")) == before


def test_a_device_that_is_full_leaves_the_other_files_as_they_were(tmp_path: Path) -> None:
    kept, full = tmp_path / "kept", tmp_path / "full"
    kept.write_bytes(b"old")
    full.symlink_to("/dev/full")

    def write() -> None:
        with all_or_nothing() as files:
            files.create(kept).write(b"new")
            files.create(full).write(b"new")

    with pytest.raises(OSError, match="No space"):
        write()
    assert kept.read_bytes() == b"old"
    assert names_in(tmp_path) == ["full", "kept"]


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    for name in ("a\0b.onnx", "a" * 300 + ".onnx"):
        with pytest.raises(SaveError, match="cannot write"):
            program().save(tmp_path / name)
    assert not names_in(tmp_path)


@pytest.mark.parametrize("name", ["a" * 240 + ".onnx", "é" * 120 + ".onnx"])
def test_a_name_may_be_as_long_as_the_system_takes(tmp_path: Path, name: str) -> None:
    program().save(tmp_path / name)
    assert fault(tmp_path / name) == ""
    assert names_in(tmp_path) == [name]


def test_a_model_and_its_data_are_two_files(tmp_path: Path) -> None:
    two = OnnxProgram({"data": linear_model(), "other": linear_model()})
    with pytest.raises(SaveError, match="a model and a data file would have this name"):
        two.save(tmp_path / "m", external_data=True)
    assert not names_in(tmp_path)


def test_what_a_path_names(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    assert file_fault(tmp_path / "file") == ""
    assert file_fault(tmp_path / "pipe") == "is not a regular file"
    assert file_fault(tmp_path / "link") == "is not a regular file"
    assert file_fault(tmp_path) == "is a folder"
    assert file_fault(tmp_path / "nowhere") == "no such file"
    assert file_fault(tmp_path / ("x" * 5000)) == "cannot be read: File name too long"


OWN = ("*.onnx", "config.json")


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with new_folder(folder) as temporary:
        (temporary / "a").write_text("a")
        assert not folder.exists()
    assert (folder / "a").read_text() == "a"
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    with new_folder(folder) as temporary:
        (temporary / "a").touch()
    assert (folder / "a").is_file()


def fails_inside(folder: Path) -> None:
    with new_folder(folder) as temporary:
        (temporary / "a").touch()
        raise KeyError("tokenizer")


def test_nothing_stays_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match=r"cannot write .*out: KeyError: 'tokenizer'"):
        fails_inside(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_places_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cases = {
        tmp_path: "exists and is not empty",
        tmp_path / "file": "is a file",
        tmp_path / "no" / "where": "there is no folder",
        tmp_path / "a\0b": "a folder name cannot hold a NUL character",
    }
    for place, message in cases.items():
        with pytest.raises(SaveError, match=message), new_folder(place):
            pytest.fail("nothing may be written")


def earlier(folder: Path) -> Path:
    folder.mkdir()
    for name in ("model.onnx", "config.json"):
        (folder / name).write_text("old")
    return folder


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "renamed in turn"])
def test_an_earlier_folder_remains_until_the_new_one_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    if not exchanges:
        monkeypatch.setattr(new_files, "_exchanged", lambda *_: False)
    folder = earlier(tmp_path / "out")
    with new_folder(folder, replaces=OWN) as temporary:
        (temporary / "model.onnx").write_text("new")
        assert (folder / "model.onnx").read_text() == "old"
    assert [file.name for file in folder.iterdir()] == ["model.onnx"]
    assert (folder / "model.onnx").read_text() == "new"
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def breaks_off(folder: Path) -> None:
    with new_folder(folder, replaces=OWN) as temporary:
        (temporary / "model.onnx").write_text("new")
        raise KeyboardInterrupt


def test_an_earlier_folder_remains_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = earlier(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        breaks_off(folder)
    monkeypatch.setattr(new_files, "_exchanged", lambda *_: False)
    rename = Path.rename

    def fails_for_the_new_one(one: Path, target: Path) -> Path:
        if (one / "model.onnx").read_text() == "new":
            raise OSError(28, "No space left on device")
        return rename(one, target)

    monkeypatch.setattr(Path, "rename", fails_for_the_new_one)
    with pytest.raises(SaveError, match="No space left"), new_folder(folder, replaces=OWN) as new:
        (new / "model.onnx").write_text("new")
    assert (folder / "model.onnx").read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(earlier(tmp_path / "out"))
    with new_folder(link, replaces=OWN) as temporary:
        (temporary / "model.onnx").write_text("new")
    assert link.is_symlink()
    assert (tmp_path / "out" / "model.onnx").read_text() == "new"


@pytest.mark.parametrize("stranger", ["model.safetensors", "notes/", ".git/"])
def test_folders_with_other_files_are_not_replaced(tmp_path: Path, stranger: str) -> None:
    folder = earlier(tmp_path / "out")
    place = folder / stranger
    if stranger.endswith("/"):
        place.mkdir()
    else:
        place.touch()
    with pytest.raises(SaveError, match=f"does not write {stranger.rstrip('/')}"):
        check_new(folder, replaces=OWN)


def test_a_folder_without_a_model_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(SaveError, match=r"does not write config\.json"):
        check_new(tmp_path, replaces=OWN)
