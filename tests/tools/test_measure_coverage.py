"""The table of a report of coverage.py."""

from __future__ import annotations

from typing import Any

from tools.measure_coverage import folder_of, table


def entry(covered: int, statements: int) -> dict[str, Any]:
    return {"summary": {"covered_lines": covered, "num_statements": statements}}


def test_files_of_a_folder_are_added_up() -> None:
    report = {
        "files": {
            "coreai_onnx/lower/aten/nn/pooling.py": entry(5, 10),
            "coreai_onnx/lower/aten/shape/views.py": entry(10, 10),
            "coreai_onnx/__init__.py": entry(0, 0),
        }
    }
    rows = table(report).splitlines()[2:]
    assert rows == [
        "| coreai_onnx | 0 | 100.0 % |",
        "| coreai_onnx/lower/aten | 20 | 75.0 % |",
        "| total | 20 | 75.0 % |",
    ]


def test_folders_are_two_levels_deep() -> None:
    assert folder_of("coreai_onnx/errors.py") == "coreai_onnx"
    assert folder_of("coreai_onnx/lower/walk/walker.py") == "coreai_onnx/lower/walk"
    assert folder_of("coreai_onnx/lower/aten/nn/pooling.py") == "coreai_onnx/lower/aten"
