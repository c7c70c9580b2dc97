"""Errors on nodes and lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import coreai_onnx
from coreai_onnx.debugging.blaming.error_report import line_errors
from tests.debugging.small_reference import converted


def wrong_program():
    program = converted()
    next(n for n in program.model.graph if n.op_type == "Tanh").op_type = "Sigmoid"
    return program


def data_of(page: Path) -> dict[str, Any]:
    _, _, rest = page.read_text().partition('<script type="application/json" id="data">')
    found: dict[str, Any] = json.loads(rest.partition("</script>")[0])
    return found


def test_the_worst_of_each_line() -> None:
    program = wrong_program()
    found = coreai_onnx.blame(program, kernels=False)
    lines = line_errors(found.model, found.differences)
    code = json.loads(program.model.metadata_props["coreai.code"])
    bad = [line for line, difference in lines.items() if not difference.ok]
    (source,) = bad
    file, _, number = source.rpartition(":")
    assert code[file][number].strip() == "hidden = torch.tanh(hidden) + x"
    assert len(lines) == 3


def test_the_page_marks_the_wrong_node(tmp_path: Path) -> None:
    found = coreai_onnx.blame(wrong_program(), kernels=False)
    data = data_of(found.to_html(tmp_path / "b.html", "a title"))
    wrong = [data["ops"][node["op"]] for node in data["nodes"] if "wrong" in node]
    assert wrong == ["Sigmoid"]
    assert data["facts"][0].startswith("1 finding in ")
    errors = data["values"][0]
    assert max(x for x in errors if x is not None) > 0.1
    assert sum(x is not None for x in errors) == found.checked


def test_the_page_of_a_comparison_has_the_errors_inside(tmp_path: Path) -> None:
    program = wrong_program()
    found = coreai_onnx.compare(program, values=True)
    data = data_of(found.to_html(tmp_path / "c.html", "a title"))
    assert data["facts"][0] == f"{len(found.failures)} of {len(found.rows)} outputs differ"
    assert [column["name"] for column in data["columns"]] == ["bodies error", "kernels error"]
    wrong = {data["ops"][node["op"]] for node in data["nodes"] if "wrong" in node}
    assert "Sigmoid" in wrong
    assert "ai.coreai::layer_norm" not in wrong, "it is before the fault"
    right = coreai_onnx.compare(converted(), values=True).to_html(tmp_path / "r.html")
    assert data_of(right)["facts"][0] == "the outputs agree"


def test_a_clean_page(tmp_path: Path) -> None:
    found = coreai_onnx.blame(converted(), kernels=False)
    page = found.to_html(tmp_path / "b.html").read_text()
    assert '"wrong":' not in page
    assert "nothing is wrong" in page
