"""Options of passes, target and files, as ``convert`` and ``optimize`` share them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from coreai_onnx.cli.options import output
from coreai_onnx.errors import CommandError
from coreai_onnx.program import OnnxProgram
from tests.support.small_models import layers_model, parse


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    output.declare(parser)
    return parser.parse_args(["-o", "m.onnx", *words])


def wasteful() -> OnnxProgram:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 4] x) => (float[2, 4] y) { a = Identity(x)  unused = Neg(a)  y = Relu(a) }""")
    return OnnxProgram({"main": model})


def test_the_passes_of_the_target_run(capsys: pytest.CaptureFixture[str]) -> None:
    program = wasteful()
    output.optimize(program, options())
    assert [node.op_type for node in program.model.graph] == ["Relu"]
    assert "nodes: 3 → 1" in capsys.readouterr().out


def test_chosen_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = wasteful()
    output.optimize(program, options("--passes", "remove_dead_code"))
    assert [node.op_type for node in program.model.graph] == ["Identity", "Relu"]
    (tmp_path / "passes_of_mine.py").write_text("def nothing(graph, why):\n    return 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--passes", " default, merge_projections,passes_of_mine:nothing")
    output.optimize(program, options(*words))
    assert len(program.model.graph) == 1
    assert program.pass_report is not None
    assert list(program.pass_report.counts)[-2:] == ["merge_projections", "nothing"]
    with pytest.raises(CommandError, match=r"--passes fold: there is no such pass\n  there are "):
        output.optimize(program, options("--passes", "fold"))


def test_near_misses(capsys: pytest.CaptureFixture[str]) -> None:
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 4] x) => (float[2, 4] y) { y = Identity(x) }""")
    output.optimize(OnnxProgram({"main": model}), options("--near-misses"))
    assert "near misses:\nremove_identities" in capsys.readouterr().out


def test_entrypoints_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    output.optimize(OnnxProgram({"a": layers_model(), "b": layers_model()}), options())
    out = capsys.readouterr().out
    assert "entrypoint a, nodes: " in out
    assert "entrypoint b, nodes: " in out


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="there is no folder"):
        output.chosen_place(tmp_path / "no" / "m.onnx")
    with pytest.raises(CommandError, match="it is a folder"):
        output.chosen_place(tmp_path)
    with pytest.raises(CommandError, match=r"must end in \.onnx, as .*m\.v2\.onnx does"):
        output.chosen_place(tmp_path / "m.v2")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(CommandError, match=r"folder\.onnx: it is a folder"):
        output.chosen_place(tmp_path / "folder.onnx")


def test_a_name_without_a_suffix_gets_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / "m.onnx"
    assert output.chosen_place(named) == named
    assert output.chosen_place(tmp_path / "m.ONNX").name == "m.ONNX"
    assert output.chosen_place(Path("/dev/null")) == Path("/dev/null")
    assert capsys.readouterr().err == ""
    assert output.chosen_place(tmp_path / "m") == named
    assert capsys.readouterr().err == f"note: {tmp_path / 'm'} has no suffix; the file is {named}\n"
    assert output.chosen_place(tmp_path / "m", ".npz").name == "m.npz"
