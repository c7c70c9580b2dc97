"""Folders that appear complete or not at all, also in the place of an earlier one."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.errors import SaveError
from coreai_onnx.model.files import new_files
from coreai_onnx.model.files.new_files import check_new, new_folder

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
    with pytest.raises(SaveError, match=r"cannot write .*out\n  KeyError: 'tokenizer'"):
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
