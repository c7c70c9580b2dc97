"""One file that needs no other."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from coreai_onnx.errors import LoadError, SaveError
from coreai_onnx.model.python.builder import Fields, Fixed
from coreai_onnx.model.python.package import skeleton
from coreai_onnx.model.python.single_file import read_source, single_file, write_file
from tests.model.python.modules import layered
from tests.model.python.packages import imported_file
from tests.support.small_models import (
    add_model,
    counter_model,
    layers_model,
    linear_model,
    linear_weights,
)
from tests.support.tolerances import assert_close

CALL = """import numpy, sys; sys.path.insert(0, "."); from kernel import call
assert not {"torch", "coreai_onnx"} & set(sys.modules)
numpy.save("y.npy", call(numpy.ones((2, 8), numpy.float32)))"""
MARK = "# " + "-" * 70 + " RUNTIME"


def test_it_runs_alone(tmp_path: Path) -> None:
    write_file(linear_model(), tmp_path / "kernel.py")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernel.py", "kernel.safetensors"]
    subprocess.run([sys.executable, "-c", CALL], cwd=tmp_path, check=True)
    weights = linear_weights()
    expected = np.ones((2, 8), np.float32) @ weights["weight"] + weights["bias"]
    assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), torch.from_numpy(expected))


def test_files_in_one_folder_keep_their_weights(tmp_path: Path) -> None:
    x = np.ones((2, 8), np.float32)
    for seed in (0, 1):
        write_file(linear_model(seed=seed), tmp_path / f"k{seed}.py")
    for seed in (0, 1):
        weights = linear_weights(seed=seed)
        expected = torch.from_numpy(x @ weights["weight"] + weights["bias"])
        found = imported_file(tmp_path / f"k{seed}.py").call(x)
        assert_close(torch.from_numpy(found), expected)


def test_missing_and_other_weights_are_refused_at_the_import(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(single_file(linear_model())[0])
    with pytest.raises(ValueError, match=r'k.safetensors is missing: .* kernel.save\("k.py"\)'):
        imported_file(path)
    write_file(linear_model(seed=1), path)
    path.write_text(single_file(linear_model(seed=0))[0])
    with pytest.raises(ValueError, match=r"k\.safetensors has other weights"):
        imported_file(path)


def test_a_failure_leaves_both_files(tmp_path: Path) -> None:
    write_file(linear_model(), tmp_path / "k.py")
    before = (tmp_path / "k.py").read_bytes()
    (tmp_path / "k.safetensors").unlink()
    (tmp_path / "k.safetensors").mkdir()
    with pytest.raises(SaveError, match="cannot write"):
        write_file(linear_model(seed=1), tmp_path / "k.py")
    assert (tmp_path / "k.py").read_bytes() == before
    with pytest.raises(SaveError, match=r"must end in \.py"):
        write_file(linear_model(), tmp_path / "k.safetensors")


def test_the_model_comes_first_and_what_follows_is_always_the_same() -> None:
    (first, rest), (other, same) = (
        single_file(model)[0].split(MARK) for model in (add_model(), layered(3))
    )
    assert rest == same
    assert first != other
    model = first.partition("def declared()")[2]
    assert model.count("\n") < 20
    assert "def main(" in model


@pytest.mark.parametrize("model", [add_model(), layers_model(), layered(3, odd=1)])
def test_every_name_is_imported_and_defined_once(model: ir.Model) -> None:
    tree = ast.parse(single_file(model)[0])
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    names += [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets
              if isinstance(t, ast.Name)]  # fmt: skip
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    names += [alias.asname or alias.name for n in imports for alias in n.names]
    assert len(names) == len(set(names))
    modules = [n.module for n in imports if isinstance(n, ast.ImportFrom)]
    assert len(modules) == len(set(modules))


TAKES = {"a": {"x": "x", 3: Fixed("t")}, "b": [Fixed(float("inf")), Fields(y="y")]}


@pytest.mark.parametrize(
    ("model", "takes"),
    [(add_model(), TAKES), (layers_model(), None), (layered(3, odd=1), None),
     (counter_model(), None)],
)  # fmt: skip
def test_ruff_changes_nothing(
    model: ir.Model, takes: dict[str, Any] | None, tmp_path: Path
) -> None:
    write_file(model, tmp_path / "kernel.py", takes)
    for command in (
        ["format", "--isolated", "--diff"],
        ["check", "--isolated", "--select=F,E4,I", "--ignore=F821"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "kernel.py"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_the_source_is_read_again() -> None:
    model = add_model()
    again, takes = read_source(single_file(model, TAKES)[0])
    assert [node.op_type for node in skeleton(again).graph.node] == ["Cast", "Add"]
    assert takes is not None
    assert takes["a"] == TAKES["a"]
    assert takes["b"][1].items == {"y": "y"}


@pytest.mark.parametrize(
    ("text", "fault"),
    [("print()", "no line '# ---"), (single_file(linear_model())[0], "its weights are not in it"),
     (single_file(add_model())[0].replace("op.Add(", "op.Addd("), r"source.py:\d+: .*'Addd'"),
     (single_file(add_model())[0].replace("def main", "def main("), r"source.py:\d+: ")],
    ids=["other", "weights", "operator", "syntax"],
)  # fmt: skip
def test_a_wrong_source_is_refused(text: str, fault: str) -> None:
    with pytest.raises(LoadError, match=fault):
        read_source(text)
