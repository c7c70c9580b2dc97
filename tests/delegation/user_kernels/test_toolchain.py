"""The compiler, the headers, and what is said where they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from coreai_onnx import kernel
from coreai_onnx.delegation.user_kernels import compiling
from coreai_onnx.delegation.user_kernels.compiling import (
    CACHE_VARIABLE,
    INCLUDE_VARIABLE,
    cache_folder,
    compiler,
    kit_folder,
    onnxruntime_headers,
)
from coreai_onnx.errors import ToolchainError
from tests.delegation.user_kernels.declared import HERE, SCALED


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match=r"no C.. compiler \(no-such-compiler\)"):
        kernel(SCALED, HERE / "scaled.cc")
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ToolchainError, match=r"install one with C\+\+17"):
        compiler()


def header(folder: Path, version: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "onnxruntime_c_api.h").write_text(f"#define ORT_API_VERSION {version}\n")
    return folder


def test_the_users_headers_are_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = header(tmp_path / "mine", 22)
    monkeypatch.setenv(INCLUDE_VARIABLE, str(mine))
    assert onnxruntime_headers() == mine


def test_headers_that_are_missing_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = header(tmp_path / "old", 18)
    monkeypatch.setattr(compiling, "_include_folders", lambda: iter([old]))
    monkeypatch.setenv(INCLUDE_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ToolchainError) as caught:
        onnxruntime_headers()
    said = str(caught.value)
    for words in ("without root", "fetch_debian_headers.sh", "conda install", INCLUDE_VARIABLE):
        assert words in said
    assert f"{old}: its API is older than version 21" in said
    assert f"{INCLUDE_VARIABLE}={tmp_path / 'nowhere'}: no onnxruntime_c_api.h" in said
    script = kit_folder() / "cmake" / "fetch_debian_headers.sh"
    assert script.is_file()
    assert str(script) in said


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "coreai_onnx"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "coreai_onnx"


def test_unpacked_headers_in_the_cache_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = header(tmp_path / "headers" / "usr" / "include" / "onnxruntime", 21)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(INCLUDE_VARIABLE, raising=False)
    monkeypatch.setattr(compiling, "_PACKAGE", tmp_path / "package")
    monkeypatch.setattr(compiling, "_CHECKOUT_KIT", tmp_path / "checkout")
    assert onnxruntime_headers() == folder
