"""Factories."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from coreai_onnx.cli.options.subject import load_object, load_subject
from coreai_onnx.errors import CommandError

MODELS = """
import torch
X = torch.ones(2, 3)
module = torch.nn.Identity()
number = 3
def only(): return torch.nn.Identity()
def positional(): return torch.nn.Identity(), (X,)
def lone(): return torch.nn.Identity(), X
def keywords(): return torch.nn.Identity(), {"input": X}
def both(): return torch.nn.Identity(), (), {"input": X}
def everything(): return torch.nn.Identity(), [X], None, ({0: torch.export.Dim("batch")},)
def nothing(): return 3
def wrong(): return torch.nn.Identity(), 3
def too_many(): return (torch.nn.Identity(),) * 5
def failing(): raise KeyError("lost")
class Outer:
    class Inner: pass
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, importable by the name that is returned."""
    name = f"models_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("factory", "args", "kwargs", "dynamic"),
    [("module", 0, [], False), ("only", 0, [], False), ("positional", 1, [], False),
     ("lone", 1, [], False), ("keywords", 0, ["input"], False), ("both", 0, ["input"], False),
     ("everything", 1, [], True)],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", ".py"])
def test_what_a_factory_may_return(
    models: str, suffix: str, factory: str, args: int, kwargs: list[str], dynamic: bool
) -> None:
    subject = load_subject(f"{models}{suffix}:{factory}")
    assert isinstance(subject.module, torch.nn.Identity)
    assert isinstance(subject.args, tuple)
    assert len(subject.args) == args
    assert list(subject.kwargs) == kwargs
    assert (subject.dynamic_shapes is not None) == dynamic


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nothing", r"returned \(int\), not a module(.|\n)*FACTORY is pkg.module:name"),
        ("too_many", "not a module"),
        ("wrong", "args of type int"),
        ("failing", r"failing\(\) raised KeyError: 'lost'"),
        ("number", "is a int, not a function or module"),
        ("missing", "has no 'missing'"),
    ],
)
def test_what_it_may_not(models: str, factory: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        load_subject(f"{models}:{factory}")


@pytest.mark.parametrize("where", ["models", ":f", "models:", ""])
def test_another_form(where: str) -> None:
    with pytest.raises(CommandError, match=r"is not of the form pkg.module:name"):
        load_subject(where)


def test_what_cannot_be_imported(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot import no_such_module: ModuleNotFoundError"):
        load_subject("no_such_module:f")
    with pytest.raises(CommandError, match=r"no such file: nowhere\.py"):
        load_subject("nowhere.py:f")
    bad = tmp_path / "bad.py"
    bad.write_text("def (:")
    with pytest.raises(CommandError, match="SyntaxError"):
        load_subject(f"{bad}:f")


def test_a_file_is_executed_once(models: str) -> None:
    outer = load_object(f"{models}.py:Outer")
    assert load_object(f"{models}.py:Outer.Inner") is outer.Inner


def test_factories_draw_the_numbers_of_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "drawing.py"
    path.write_text(
        "import random, numpy, torch\nAT_IMPORT = torch.nn.Linear(3, 2)\n"
        "def model(): return torch.nn.Linear(3, 2), "
        "(torch.randn(2), random.random(), numpy.random.rand())\n"
    )

    def made(name: str, seed: int) -> Any:
        sys.modules.pop("drawing", None)
        subject = load_subject(f"{path}:{name}", seed)
        x, *numbers = (
            a.tolist() if isinstance(a, torch.Tensor) else a for a in subject.args or [0]
        )
        return subject.module.weight.tolist(), x, numbers

    for name in ("model", "AT_IMPORT"):
        assert made(name, 1) == made(name, 1) != made(name, 2)


def test_exported_programs(tmp_path: Path) -> None:
    path, linear = tmp_path / "m.pt2", torch.nn.Linear(3, 2)
    torch.export.save(torch.export.export(linear, (torch.ones(1, 3),)), path)
    subject = load_subject(str(path))
    assert subject.program is not None
    assert torch.equal(subject.module(*subject.args), linear(torch.ones(1, 3)))


def test_what_is_no_exported_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "weights.pt2"
    torch.save({"weight": torch.ones(2)}, weights)
    text = tmp_path / "text.pt2"
    text.write_text("no archive")
    for path in (weights, text):
        with pytest.raises(CommandError, match=r"is not a file of torch\.export\.save"):
            load_subject(str(path))
    with pytest.raises(CommandError, match="no such file"):
        load_subject(str(tmp_path / "nowhere.pt2"))
    (tmp_path / "zeros.pt2").symlink_to("/dev/zero")
    with pytest.raises(CommandError, match=r"zeros\.pt2: is not a regular file"):
        load_subject(str(tmp_path / "zeros.pt2"))
    assert "raceback" not in capfd.readouterr().err


def test_a_module_that_leaves_while_it_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "leaving.py"
    path.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(CommandError, match=r"cannot import .*leaving\.py: SystemExit: 3"):
        load_subject(f"{path}:model")


def test_nested_names(models: str) -> None:
    found: Any = load_object(f"{models}:Outer.Inner")
    assert found.__qualname__ == "Outer.Inner"
