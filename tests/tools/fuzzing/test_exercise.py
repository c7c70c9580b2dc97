"""Five seconds of the file fuzzer; ``make fuzz-files`` runs it for ten minutes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coreai_onnx.errors import LoadError
from coreai_onnx.model.files.loading import fault
from tools.fuzzing.exercise import Exerciser, FoundError
from tools.fuzzing.seeds import DATA, seeds

FOUND = (32, 35, 112, 144, 332, 362, 423, 550, 1141, 1589)
FOUND += (200979, 201257, 201258, 202506, 202710, 202990, 205906, 208709, 301809, 305774)
"""Seeds of files that were findings once."""


@pytest.fixture
def exerciser(tmp_path: Path) -> Exerciser:
    folder = tmp_path / "m"
    folder.mkdir()
    return Exerciser(folder, sessions=False)


def test_the_models_that_are_changed_are_whole(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    for model in seeds():
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        assert fault(tmp_path / "m.onnx") == ""


@pytest.mark.filterwarnings("ignore:Ignoring unknown external data:UserWarning")
def test_changed_files_give_results_or_errors_of_our_own(exerciser: Exerciser) -> None:
    for seed in FOUND:
        exerciser.run(seed)
    end, seed = time.monotonic() + 5, 0
    while time.monotonic() < end and seed < 200:
        exerciser.run(seed)
        seed += 1
    assert exerciser.good > 0


def test_what_is_no_error_of_our_own_is_found(
    exerciser: Exerciser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(error: Exception) -> object:
        def inspect(path: Path) -> None:
            raise error

        return inspect

    hidden = LoadError("told")
    hidden.__cause__ = IndexError("list index out of range")
    for error in (KeyError("x"), hidden):
        monkeypatch.setattr("tools.fuzzing.exercise.inspect_model", raising(error))
        with pytest.raises(FoundError):
            exerciser.run(0)
    monkeypatch.setattr("tools.fuzzing.exercise.inspect_model", lambda path: "\x1b[2J")
    with pytest.raises(FoundError, match="what a terminal obeys"):
        exerciser.run(0)
