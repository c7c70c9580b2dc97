"""The file of a package, and the settings that it is run with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coreai_onnx.errors import LoadError, SaveError, SessionError
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.deployment.packaged_file import PackagedFile
from tests.support.small_models import counter_model, linear_model, parse


@pytest.fixture
def file(tmp_path: Path) -> Path:
    OnnxProgram({"main": linear_model()}).save(tmp_path / "linear.onnx", external_data=True)
    return tmp_path / "linear.onnx"


def test_a_file_or_folder(file: Path, tmp_path: Path) -> None:
    assert PackagedFile.of(file).name == "linear"
    (tmp_path / "encoder").mkdir()
    OnnxProgram({"main": linear_model()}).save(tmp_path / "encoder" / "model.onnx")
    assert PackagedFile.of(tmp_path / "encoder").name == "encoder"
    assert PackagedFile.of(file, name="mine-1.0").name == "mine-1.0"


def test_its_data_files_are_copied(file: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    PackagedFile.of(file).copy(tmp_path / "copy")
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {"model.onnx", "linear.onnx.data"}
    (tmp_path / "linear.onnx.data").unlink()
    assert OnnxProgram.load(tmp_path / "copy" / "model.onnx").run  # it has its weights


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": "a/b"}, SaveError, "'a/b' cannot be the name of a package"),
        ({"name": "../x"}, SaveError, "cannot be the name of a package"),
        ({"batch_size": 0}, SaveError, "batch_size must be positive, got 0"),
        ({"speed": 3}, SaveError, "a package has no setting 'speed'; settings: "),
        ({"threads": 0}, SessionError, "threads"),
        ({"provider": 3}, SessionError, "provider"),
    ],
)
def test_what_is_not_possible(file: Path, options: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        PackagedFile.of(file, **options)


def test_files_that_cannot_be_packaged(file: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"nowhere\.onnx"):
        PackagedFile.of(tmp_path / "nowhere.onnx")
    OnnxProgram({"main": counter_model()}).save(tmp_path / "counter.onnx")
    with pytest.raises(SaveError, match=r"counter\.onnx has states, count: requests"):
        PackagedFile.of(tmp_path / "counter.onnx")


def test_settings_are_stored_as_json_can_hold_them(file: Path) -> None:
    stored = PackagedFile.of(file, threads=2, kernels=False, provider=("cpu", {"use_arena": 0}))
    providers = [("CPUExecutionProvider", {"use_arena": "0"})]
    assert stored.stored_settings == {"threads": 2, "kernels": False, "providers": providers}
    assert PackagedFile.of(file).stored_settings == {}
    with pytest.raises(SaveError, match="packed_weights cannot be set: its files are not part"):
        assert PackagedFile.of(file, packed_weights="w.bin").stored_settings


def test_kernels_run_on_the_cpu(file: Path) -> None:
    assert PackagedFile.of(file, kernels=True).uses_kernels
    assert not PackagedFile.of(file, kernels=False).uses_kernels
    assert not PackagedFile.of(file, provider="cuda").uses_kernels
    assert [path.stem for path in PackagedFile.of(file, kernels=True).libraries] == [
        "libcoreai_onnx_ops"
    ]


def test_the_library_of_tokenizers_is_one_of_the_package(tmp_path: Path) -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21, "ai.onnx.contrib": 1]>
    agraph (string[n] text) => (string[n] upper) { upper = ai.onnx.contrib.StringUpper(text) }""")
    OnnxProgram({"main": model}).save(tmp_path / "upper.onnx")
    (library,) = PackagedFile.of(tmp_path / "upper.onnx", kernels=False).libraries
    assert "ext" in library.name
