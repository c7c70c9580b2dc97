"""Paths that are not files which can be read to their end."""

from __future__ import annotations

import os
from pathlib import Path

from coreai_onnx.model.files.regular_files import file_fault


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
