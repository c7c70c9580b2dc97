"""The targets of the kernels, and what the documentation says about them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.support.kernel_targets import (
    OVERRIDE,
    all_targets,
    chosen_target,
    targets_of_this_machine,
)

_ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def documented() -> dict[str, tuple[str, str]]:
    """Return on what each target was tested and timed, from the table of custom_ops/README.md."""
    text = (REPO / "custom_ops" / "README.md").read_text().split("## Targets")[1]
    return {name: (tested, timed) for name, tested, timed in _ROW.findall(text)}


def test_every_target_is_in_the_table() -> None:
    header = (REPO / "custom_ops" / "simd" / "target.h").read_text()
    names = re.search(r"enum class Target \{([^}]+)\}", header)
    assert names is not None
    assert len(all_targets()) == len(names[1].split(","))
    assert list(documented()) == all_targets()


def test_targets_that_ran_here_are_not_documented_as_emulated(kernels: Path) -> None:
    here = targets_of_this_machine(kernels)
    assert "scalar" in here
    emulated = [name for name in here if "emulator" in documented()[name][0]]
    assert not emulated, f"enter this CPU in the table of custom_ops/README.md for {emulated}"


def test_the_chosen_target_is_the_widest_or_that_of_the_variable(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OVERRIDE, raising=False)
    assert chosen_target(kernels) == targets_of_this_machine(kernels)[-1]
    monkeypatch.setenv(OVERRIDE, "scalar")
    targets_of_this_machine(kernels)
    assert chosen_target(kernels) == "scalar"


def test_pytest_prints_them(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OVERRIDE, "scalar")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/test_version.py"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    targets = " ".join(targets_of_this_machine(kernels))
    assert f"targets of this machine: {targets}; ran: scalar\n" in done.stdout
