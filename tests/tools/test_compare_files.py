"""What ``tools/compare_files.py`` says of equal and of different files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

import onnx_ir as ir
import pytest

from coreai_onnx import OnnxProgram
from coreai_onnx.passes import Target
from tests.support.small_models import parse
from tools import compare_files
from tools.compare_files import TARGETS, differences, digest, file_digests, place

MODEL = """<ir_version: 10, opset_import: ["": 21, "ai.coreai": 1]>
agraph (float[n, 4] x, bool go) => (float[n, 4] y)
<float[4] scale = {1.0, 2.0, 3.0, 4.0}>
{ [a] scaled = Mul(x, scale)
  [b] called = ai.coreai.twice(scaled)
  [c] y = If(go) <
    then_branch = yes () => (float[n, 4] t) { [d] t = Neg(called) },
    else_branch = no () => (float[n, 4] e) { [e] e = Abs(called) }> }
<domain: "ai.coreai", opset_import: ["": 21]> twice (v) => (w) { [f] w = Add(v, v) }"""


def run_of(
    text: str = MODEL, source: str = "site-packages/m.py:7", code: str = "", metadata: str = ""
) -> dict[str, object]:
    """The digests of a run over one model; each node has the source line."""
    model = parse(text)
    for body in (model.graph, *model.functions.values()):
        for node in body.all_nodes():
            node.metadata_props["coreai.source"] = source
    file, _, line = source.rpartition(":")
    model.metadata_props["coreai.code"] = json.dumps({file: {line: code}})
    relation = {"holds": metadata or "n > 1", "source": source}
    model.metadata_props["coreai.relations"] = json.dumps([relation])
    content, parts = file_digests(OnnxProgram({"main": model}))
    keys = {part: digest("\n".join(lines).encode()) for part, lines in parts.items()}
    texts = {keys[part]: lines for part, lines in parts.items()}
    return {"versions": {}, "files": {"m": {"bytes": content, "parts": keys}}, "texts": texts}


def difference(**changes: str) -> str:
    """What differs from the unchanged model."""
    (found,) = differences(run_of(), run_of(**changes))
    return found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("[a] scaled = Mul", "[a] scaled = Div", "m: graph differs\n  line 1 before: [a] scaled ="),
        ("Abs(called)", "Exp(called)", "m: graph differs\n  line 3 before: [c] y = If (go) <"),
        ("Add(v, v)", "Mul(v, v)", "m: function ai.coreai::twice differs\n  line 1 before: [f]"),
        ("twice", "again", "m: functions differs\n  line 1 before: function ai.coreai::twice"),
        ("4.0}", "5.0}", "m: weights differs\n  line 1 before: scale [4] #"),
        ("float[n, 4] y", "float[m, 4] y", "m: graph differs\n  line 5 before: interface"),
        ("ir_version: 10", "ir_version: 11", "m: model differs\n  line 1 before: ir 10"),
    ],
)
def test_the_first_difference_is_located(old: str, new: str, expected: str) -> None:
    assert difference(text=MODEL.replace(old, new)).startswith(expected)


def test_metadata_and_debug_information_are_told_apart() -> None:
    other = difference(metadata="n > 2")
    assert other.startswith("m: metadata differs\n  line 1 before: coreai.relations = ")
    for changed in (difference(source="m.py:8"), difference(code="y = 2 * x")):
        assert changed.startswith(
            "m: graph equal, debug info differs\n  line 1 before: coreai.code"
        )
    assert 'after:  coreai.code = {"m.py:7": "y = 2 * x"' in changed


def test_nodes_in_branches_have_their_lines_in_the_debug_information() -> None:
    _, parts = file_digests(OnnxProgram({"main": with_line_in_branch("other.py:3")}))
    _, before = file_digests(OnnxProgram({"main": with_line_in_branch("other.py:2")}))
    assert [part for part in parts if parts[part] != before[part]] == ["debug info"]


def with_line_in_branch(source: str) -> ir.Model:
    model = parse(MODEL)
    node = next(node for node in model.graph.all_nodes() if node.name == "d")
    node.metadata_props["coreai.source"] = source
    return model


def test_folders_and_own_lines_are_not_compared() -> None:
    assert not differences(run_of(), run_of(source="elsewhere/lib/m.py:7"))
    own = [run_of(source=f"coreai_onnx/{at}", code=f"at {at}") for at in ("a/b.py:1", "c.py:2")]
    assert not differences(*own)
    assert place("tests/models/vision.py:41") == "vision.py:41"


def test_new_and_missing_files_and_other_libraries_are_differences() -> None:
    run, empty = run_of(), {"versions": {}, "files": {}, "texts": {}}
    assert differences(run, empty) == ["m: is gone"]
    assert differences(empty, run) == ["m: is new"]
    (found,) = differences(run, run | {"versions": {"torch": "3.0"}})
    assert found == "libraries: {} before, {'torch': '3.0'} after"


def test_every_target_is_compared() -> None:
    assert set(TARGETS) == set(get_args(Target))


@pytest.mark.slow
def test_a_second_run_is_equal_and_a_changed_digest_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "digests.json"
    compute, runs = compare_files.computed, []

    def computed(*arguments: Any) -> Any:
        runs.append(compute(*arguments) if len(runs) < 2 else runs[-1])
        return runs[-1]

    monkeypatch.setattr(compare_files, "computed", computed)

    def run(option: str) -> int:
        only = ["--models", "resnet", "--processes", "1"]
        monkeypatch.setattr(sys, "argv", ["compare_files.py", option, str(path), *only])
        return compare_files.main()

    assert run("--write") == 0
    assert run("--against") == 0
    assert "every file is the same" in capsys.readouterr().out
    digests = json.loads(path.read_text())
    assert sorted(digests["files"]) == sorted(
        f"resnet {label}" for label in (*TARGETS, "unoptimized", "recognized")
    )
    digests["files"]["resnet kernels"]["bytes"] = ""
    digests["files"]["gone kernels"] = {}
    path.write_text(json.dumps(digests))
    assert run("--against") == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "resnet kernels: every part is equal, but the bytes of the file differ",
        "gone kernels: is gone",
    ]
