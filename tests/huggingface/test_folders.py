"""Folders that appear complete or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coreai_onnx.errors import SaveError
from coreai_onnx.huggingface.folders import copy_companions, new_folder, write_json
from tests.huggingface_folders import llama, llama_folder


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with new_folder(folder) as temporary:
        write_json(temporary / "a.json", {"a": 1})
        assert not folder.exists()
    assert json.loads((folder / "a.json").read_text()) == {"a": 1}
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
    }
    for place, message in cases.items():
        with pytest.raises(SaveError, match=message), new_folder(place):
            pytest.fail("nothing may be written")


def test_what_is_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    model = llama_folder(source)
    (source / "README.md").touch()
    target.mkdir()
    copy_companions(model, source, target)
    names = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in target.iterdir()} == names
    assert (target / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_a_model_without_a_folder(tmp_path: Path) -> None:
    copy_companions(llama(), None, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
    assert (tmp_path / "generation_config.json").is_file()
