"""Compilation: messages, the cache, and machines without a toolchain."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from coreai_onnx.delegation.user_kernels import compiling
from coreai_onnx.delegation.user_kernels.compiling import (
    CACHE_VARIABLE,
    compiled,
    declaration_header,
)
from coreai_onnx.errors import KernelError
from tests.delegation.user_kernels.declared import CLIPPED_SWIGLU, HERE, SCALED, toolchain

__all__ = ["toolchain"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toolchain")]
SOURCE = HERE / "scaled.cc"


def test_an_error_shows_the_users_line(tmp_path: Path) -> None:
    source = tmp_path / "mine.cc"
    source.write_text(SOURCE.read_text().replace("out[i] =", "out[i] = wrong_name +"))
    line = (
        source.read_text()
        .splitlines()
        .index(next(line for line in source.read_text().splitlines() if "wrong_name" in line))
        + 1
    )
    with pytest.raises(KernelError) as caught:
        compiled(SCALED, [source], ())
    assert f"{source}:{line}:" in str(caught.value)
    assert "wrong_name" in str(caught.value)


def test_a_missing_include_and_a_missing_source(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"nowhere\.h"):
        compiled(SCALED, ['#include "nowhere.h"\n'], ())
    with pytest.raises(KernelError, match=r"nowhere.cc: no such source"):
        compiled(SCALED, [tmp_path / "nowhere.cc"], ())


def test_a_source_without_a_kernel_is_an_error_of_the_linker() -> None:
    with pytest.raises(KernelError, match="CreateDeclaredKernel"):
        compiled(SCALED, ['#include "kit/kernel.h"\n'], ())


def test_the_cache_holds_one_library_per_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    run = compiling._run
    monkeypatch.setattr(compiling, "_run", lambda c: commands.append(list(c)) or run(c))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))

    def builds() -> int:
        return sum("-shared" in command for command in commands)

    (tmp_path / "factor.h").write_text("inline float Twice(float x) { return x * 2; }\n")
    text = SOURCE.read_text()
    source = tmp_path / "mine.cc"
    source.write_text(text.replace("#include <string>", '#include "factor.h"\n#include <string>'))
    first = compiled(SCALED, [source], ("-O0",))
    assert compiled(SCALED, [source], ("-O0",)) == first
    assert builds() == 1
    (tmp_path / "factor.h").write_text("inline float Twice(float x) { return x + x; }\n")
    changed = compiled(SCALED, [source], ("-O0",))
    assert changed != first
    assert builds() == 2
    assert compiled(SCALED, [source], ("-O1",)) not in (first, changed)
    libraries = sorted((tmp_path / "cache" / "kernels").iterdir())
    assert len(libraries) == 3, "nothing unfinished is left"
    assert stat.S_ISREG(first.stat().st_mode)


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    with pytest.raises(KernelError, match="wrong"):
        compiled(SCALED, ["int main() { return wrong; }\n"], ())
    assert [p.name for p in (tmp_path / "kernels").iterdir()] == ["sources"]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(KernelError, match="cannot compile scaled in"):
        compiled(SCALED, [SOURCE], ())


def test_the_header_has_names_and_defaults() -> None:
    header = declaration_header(CLIPPED_SWIGLU)
    assert 'kDomain[] = "ai.coreai.user"' in header
    assert "inline constexpr float kLimitDefault = 7.0f;" in header
    assert "kGateInput, kUpInput," in header
    assert "kDTypes = 15;" in header
    assert "kShapedOutputs = 1;" in header
