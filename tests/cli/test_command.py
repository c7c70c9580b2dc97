"""The command as a whole: help, errors, exit codes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from coreai_onnx.cli import main
from coreai_onnx.cli.command import parser
from coreai_onnx.cli.commands import inspect_file
from coreai_onnx.program import OnnxProgram
from tests.cli.wrong_words import CASES, WRONG, words_of
from tests.conftest import REPO
from tests.debugging.small_reference import converted
from tests.support.execution_providers import IDLE, count_without_arena
from tests.support.huggingface_folders import BERT
from tests.support.small_models import linear_model


@pytest.mark.parametrize(
    "command",
    [
        *("convert", "export", "perplexity", "optimize", "run", "compare", "inspect", "diff"),
        *("view", "ops-path"),
    ],
)
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_of_overview:
        main(["--help"])
    overview = capsys.readouterr().out
    assert exit_of_overview.value.code == 0
    assert f"\n    {command}" in overview
    with pytest.raises(SystemExit) as exit_of_help:
        main([command, "--help"])
    assert exit_of_help.value.code == 0
    text = capsys.readouterr().out
    assert "--debug" in text
    assert command == "ops-path" or f"  coreai-onnx {command} " in text  # an example


@pytest.mark.parametrize("words", [[], ["translate"], ["run"], ["convert", "a:b"]])
def test_wrong_words_are_told_with_the_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: coreai-onnx" in capsys.readouterr().err


def test_an_error_of_ours_is_one_message_without_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["inspect", "nowhere.onnx"]) == 2
    assert capsys.readouterr().err == "error: nowhere.onnx: no such file\n"


READERS = {
    "inspect": ("inspect", "FILE"),
    "histogram": ("inspect", "FILE", "--histogram"),
    "run": ("run", "FILE"),
    "profile": ("profile", "FILE"),
    "annotate": ("annotate", "FILE"),
    "extract": ("extract", "FILE", "layers", "-o", "out.onnx"),
    "diff": ("diff", "FILE", "FILE"),
    "optimize": ("optimize", "FILE", "-o", "out.onnx"),
    "compare": ("compare", "FILE", "torch.nn:Identity"),
    "view": ("view", "FILE", "--no-browser"),
}
DAMAGES = {
    "empty": "the file is empty",
    "cut": "is not an ONNX model",
    "newer": "its opset is 99",
    "folder": "is a folder",
    "absent": "no such file",
    "outside": "outside of the model's folder",
    "without data": "which does not exist",
    "short data": "truncated",
}


def damaged(folder: Path, damage: str) -> Path:
    path, data = folder / "m.onnx", folder / "m.onnx.data"
    if damage == "absent":
        return path
    if damage == "folder":
        path.mkdir()
        return path
    OnnxProgram({"main": linear_model()}).save(path, external_data="data" in damage)
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "without data":
        data.unlink()
    elif damage == "short data":
        os.truncate(data, 100)
    else:
        proto = onnx.load(path)
        if damage == "newer":
            proto.opset_import[0].version = 99
        else:
            (tensor,) = (t for t in proto.graph.initializer if t.name == "weight")
            (folder.parent / "secret").write_bytes(tensor.raw_data)
            onnx.external_data_helper.set_external_data(tensor, "../secret")
            tensor.ClearField("raw_data")
        path.write_bytes(proto.SerializeToString())
    return path


# A graph is shown without its weights.
DAMAGED = [
    (command, damage)
    for command in READERS
    for damage in DAMAGES
    if not ("data" in damage and command in ("inspect", "histogram", "view"))
]


@pytest.mark.parametrize(("command", "damage"), DAMAGED)
def test_bad_files_are_told_by_every_command(
    command: str,
    damage: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = damaged(folder, damage)
    monkeypatch.chdir(tmp_path)
    assert main([str(path) if word == "FILE" else word for word in READERS[command]]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert str(path) in told.err
    assert DAMAGES[damage] in told.err
    assert "raceback" not in told.err
    assert not (tmp_path / "out.onnx").exists()


def test_an_unexpected_error_names_its_type_and_the_way_to_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(path: str) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(inspect_file, "inspect_model", failing)
    assert main(["inspect", "m.onnx"]) == 2
    assert capsys.readouterr().err == (
        "error: ZeroDivisionError: by zero\n(--debug shows the traceback)\n"
    )
    with pytest.raises(ZeroDivisionError):
        main(["inspect", "m.onnx", "--debug"])


MODELS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 64)
    def forward(self, x, y=None):
        return self.linear(x)

class Plain: pass
net, X = Net().eval(), torch.randn(2, 8)
text = "no pass"
def one(): return net, (X,)
def number(): return 3
def none(): return None
def failing(): raise KeyError("lost")
def leaving(): raise SystemExit(3)
def five(): return (net,) * 5
def wrong_args(): return net, 3
def wrong_kwargs(): return net, (X,), {"z": X}
def other_args(): return net, (torch.randn(2, 9),)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, factories, and files that are something else."""
    folder = tmp_path_factory.mktemp("words")
    OnnxProgram({"main": linear_model()}).save(folder / "model.onnx")
    (folder / "models.py").write_text(MODELS)
    bert = {"model_type": "bert", "architectures": ["BertModel"], "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(BERT | bert))
    (folder / "syntax.py").write_text("def (:")
    (folder / "leaves.py").write_text("import sys; sys.exit(0)")
    (folder / "broken.pt2").write_bytes(b"PK no archive")
    (folder / "broken.npy").write_bytes(b"\x93NUMPY")
    torch.save({"weight": torch.ones(2)}, folder / "archive.pt2")
    np.save(folder / "text.npy", np.array(["text"]))
    with (folder / "archive.npy").open("wb") as file:
        np.savez(file, a=np.ones(2))
    linear = torch.export.export(torch.nn.Linear(8, 64), (torch.ones(2, 8),))
    torch.export.save(linear, folder / "program.pt2")
    rows = {"x": [[1.0] * 8] * 3, "text": ["a", "b", "c"]}
    pq.write_table(pa.table(rows), folder / "rows.parquet")
    return folder


def test_every_option_of_every_command_has_wrong_values() -> None:
    commands = next(a for a in parser()._actions if isinstance(a.choices, dict)).choices
    names = {
        name: {action.dest for action in one._actions} - {"help"} for name, one in commands.items()
    }
    assert names == {name: set(options) for name, options in WRONG.items()}


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
@pytest.mark.parametrize(("command", "name", "wrong"), CASES, ids=lambda x: str(x)[:60])
def test_wrong_values_are_one_message(
    command: str,
    name: str,
    wrong: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    there = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    words = words_of(command, name, wrong)
    right = {
        "MODEL": "model.onnx",
        "FACTORY": "models.py:one",
        "SOURCE": "config.json",
        "RECORD": "program.pt2",
        "ROWS": "rows.parquet",
    }
    right |= {"TEXT": "models.py"}
    given = [right.get(word, word) for word in words]
    try:
        code = main(given)
    except SystemExit as usage:
        code = usage.code
    told = capfd.readouterr().err
    assert code == 2, told
    assert "error: " in told.splitlines()[-1 if told.startswith("usage: ") else 0], told
    assert "raceback" not in told, told  # neither one, nor the advice to ask for one
    now = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert now == there


def test_an_interrupt_ends_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspect_file, "inspect_model", interrupted)
    for words in (["inspect", "m.onnx"], ["inspect", "m.onnx", "--debug"]):
        assert main(words) == 130
        assert capsys.readouterr().err == "interrupted\n"


CTRL_C = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
WRAPPED = """import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt as error:
    raise ImportError("half imported") from error
"""
CODES = {"plain": CTRL_C, "wrapped": WRAPPED}
SIGNALS = ("SIGTERM", "SIGHUP")


# The process treats all signals alike from its start on: the first and the last import show it.
@pytest.mark.parametrize(
    ("library", "how"),
    [
        *itertools.product(("numpy", "onnx_ir", "onnxruntime", "torch", "mine"), CODES),
        *itertools.product(("numpy", "mine"), SIGNALS),
    ],
)
def test_an_interrupt_while_something_is_imported(library: str, how: str, tmp_path: Path) -> None:
    code = CODES.get(how) or CTRL_C.replace("SIGINT", how)
    (tmp_path / f"{library}.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPO}"}
    result = subprocess.run(
        [sys.executable, "-m", "coreai_onnx", "convert", "mine:model", "-o", "out.onnx"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr, result.stdout) == (130, "interrupted\n", "")


def test_output_that_nobody_reads_and_output_that_cannot_be_written(folder: Path) -> None:
    words = [sys.executable, "-m", "coreai_onnx", "inspect", "model.onnx"]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    environment.pop("PYTHONUNBUFFERED", None)
    reader, writer = os.pipe()
    os.close(reader)
    gone = subprocess.run(
        words, cwd=folder, env=environment, stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (gone.returncode, gone.stderr) == (141, b"")
    with Path("/dev/full").open("wb") as device:
        full = subprocess.run(
            words, cwd=folder, env=environment, stdout=device, stderr=subprocess.PIPE, check=False
        )
    message = b"error: cannot write to the standard output: No space left on device\n"
    assert (full.returncode, full.stderr) == (2, message)


def test_python_m(repo: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "coreai_onnx", "inspect", "nowhere.onnx"],
        cwd=repo, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr == "error: nowhere.onnx: no such file\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("command", "sessions"),
    [
        (("run", "m.onnx"), 1),
        (("compare", "m.onnx", "m.pt2", "--values"), 3),
        (("compare", "m.onnx", "m.onnx"), 2),
        (("blame", "m.onnx", "m.pt2"), 2),
        (("profile", "m.onnx", "--runs", "1"), 2),
        (("annotate", "m.onnx", "m.pt2", "--runs", "1"), 3),
        (("memory", "m.onnx"), 1),
    ],
    ids=str,
)
def test_every_session_of_a_command_has_the_provider(
    command: tuple[str, ...], sessions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted().save(tmp_path / "m.onnx", record=tmp_path / "m.pt2")
    monkeypatch.chdir(tmp_path)
    opened = count_without_arena(monkeypatch)
    options = ["--no-kernels", "--provider", "cpu", "--provider-option", "use_arena=0"]
    assert main([*command, *options]) == 0
    assert len(opened) == sessions


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    OnnxProgram({"main": linear_model()}).save(tmp_path / "m.onnx")
    words = ["run", "m.onnx", "--provider", IDLE]
    result = subprocess.run(
        [sys.executable, "-m", "coreai_onnx", *words],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"warning: {IDLE} takes no node of the model, which runs on CPU")
