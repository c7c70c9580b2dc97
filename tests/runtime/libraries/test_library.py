"""Where the kernel library is looked for, and what is said when it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx.errors import KernelsNotBuiltError, SessionError
from coreai_onnx.runtime.libraries import library
from coreai_onnx.runtime.libraries.library import LIBRARY_NAME, kernels_built, ops_library_path
from coreai_onnx.runtime.libraries.platforms import this_platform
from tests.runtime.libraries.test_platforms import windows_library


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An installed package and a checkout without a library: (installed, checkout)."""
    monkeypatch.delenv(library.ENVIRONMENT_VARIABLE, raising=False)
    installed, checkout = tmp_path / "site" / "lib", tmp_path / "checkout"
    monkeypatch.setattr(library, "_INSTALLED", installed)
    monkeypatch.setattr(library, "_CHECKOUT", checkout)
    return installed, checkout


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_the_environment_variable_comes_first(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    touch(places[0] / LIBRARY_NAME)
    other = touch(tmp_path / "other.so")
    monkeypatch.setenv(library.ENVIRONMENT_VARIABLE, str(other))
    assert ops_library_path() == other


def test_a_wrong_environment_variable_is_an_error_and_no_fallback(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(places[0] / LIBRARY_NAME)
    monkeypatch.setenv(library.ENVIRONMENT_VARIABLE, "/nowhere/ops.so")
    with pytest.raises(KernelsNotBuiltError, match=r"COREAI_ONNX_OPS=/nowhere/ops.so"):
        ops_library_path()
    assert not kernels_built()


def test_the_installed_library_comes_before_the_checkout(places: tuple[Path, Path]) -> None:
    installed, checkout = places
    touch(checkout / "custom_ops" / "CMakeLists.txt")
    built = touch(checkout / "build" / "ops" / LIBRARY_NAME)
    assert ops_library_path() == built
    touch(installed / LIBRARY_NAME)
    assert ops_library_path() == installed / LIBRARY_NAME
    assert kernels_built()


def test_a_build_folder_beside_an_installed_package_is_not_a_checkout(
    places: tuple[Path, Path],
) -> None:
    touch(places[1] / "build" / "ops" / LIBRARY_NAME)
    assert not kernels_built()


def test_the_error_says_what_to_do_in_a_checkout(places: tuple[Path, Path]) -> None:
    touch(places[1] / "custom_ops" / "CMakeLists.txt")
    with pytest.raises(KernelsNotBuiltError) as caught:
        ops_library_path()
    text = str(caught.value)
    assert "make build" in text
    assert str(places[0] / LIBRARY_NAME) in text
    assert str(places[1] / "build" / "ops" / LIBRARY_NAME) in text
    assert "kernels=False" in text
    assert isinstance(caught.value, SessionError)


def test_the_error_says_what_to_do_with_an_installed_package(places: tuple[Path, Path]) -> None:
    with pytest.raises(
        KernelsNotBuiltError, match=r"compiler(.|\n)*reinstall(.|\n)*COREAI_ONNX_OPS"
    ):
        ops_library_path()


def test_the_kernels_of_another_system_are_named(places: tuple[Path, Path]) -> None:
    foreign = touch(places[0] / "coreai_onnx_ops.dll")
    foreign.write_bytes(windows_library())
    with pytest.raises(KernelsNotBuiltError) as caught:
        ops_library_path()
    first, *advice = str(caught.value).splitlines()
    assert first == f"coreai_onnx_ops.dll is for Windows x86_64, this machine is {this_platform()}"
    assert "pip install --force-reinstall" in advice[0]
    assert "kernels=False" in advice[1]
