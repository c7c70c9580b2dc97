"""Pages of mapped files can go without losing what was written to them."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from coreai_onnx.model.files.mapped_tensors import LARGE
from coreai_onnx.model.files.saving import give_back_mapped_files, mapped_below

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is mapped")
COUNT = 4 * LARGE


def mapped(path: Path) -> np.ndarray:
    np.arange(COUNT, dtype=np.uint8).tofile(path)
    return np.memmap(path, np.uint8, "c")


def resident(path: Path | str) -> int:
    """KiB of a file that this process holds."""
    text = Path("/proc/self/smaps").read_text()
    blocks = re.findall(rf"{re.escape(str(path))}\n(?:\D.*\n)*?Rss:\s+(\d+) kB", text)
    return sum(map(int, blocks))


def test_pages_go_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    array, expected = mapped(path), np.arange(COUNT, dtype=np.uint8)
    assert np.array_equal(array, expected)
    before = resident(path)
    assert before >= COUNT // 1024
    assert give_back_mapped_files() >= COUNT
    assert resident(path) < before // 2
    assert np.array_equal(array, expected)


def test_what_was_changed_stays(tmp_path: Path) -> None:
    array = mapped(tmp_path / "weights")
    array[::4096] = 77
    expected = array.copy()
    give_back_mapped_files()
    assert np.array_equal(array, expected)


def test_code_and_plain_memory_stay(tmp_path: Path) -> None:
    plain = np.arange(COUNT, dtype=np.uint8)
    library = next(
        line.split(maxsplit=5)[5]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "libtorch_cpu" in line
    )
    before = resident(library)
    give_back_mapped_files()
    assert resident(library) >= before > 0
    assert np.array_equal(plain, np.arange(COUNT, dtype=np.uint8))


def test_elsewhere_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = mapped(tmp_path / "weights")
    array.sum()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert give_back_mapped_files() == 0
    assert resident(tmp_path / "weights") >= COUNT // 1024


def test_pages_go_whenever_they_exceed_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    array, expected = mapped(path), np.arange(COUNT, dtype=np.uint8)
    with mapped_below(1 << 62):
        assert np.array_equal(array, expected)
        time.sleep(0.1)
        before = resident(path)
    assert before >= COUNT // 1024
    with mapped_below(0):
        deadline = time.monotonic() + 10
        while resident(path) > before // 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert resident(path) <= before // 2
    assert np.array_equal(array, expected)
