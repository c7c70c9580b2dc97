"""One file that needs no other."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from coreai_onnx.source.single_file import single_file, write_file
from tests.small_models import add_model, linear_model, linear_weights
from tests.tolerances import assert_close

CALL = """import numpy, sys; sys.path.insert(0, "."); from kernel import call
assert not {"torch", "coreai_onnx"} & set(sys.modules)
numpy.save("y.npy", call(numpy.ones((2, 8), numpy.float32)))"""


def test_it_runs_alone(tmp_path: Path) -> None:
    write_file(linear_model(), tmp_path / "kernel.py")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernel.py", "weights.safetensors"]
    subprocess.run([sys.executable, "-c", CALL], cwd=tmp_path, check=True)
    weights = linear_weights()
    expected = np.ones((2, 8), np.float32) @ weights["weight"] + weights["bias"]
    assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), torch.from_numpy(expected))


def test_names_of_the_builder_are_not_defined_twice() -> None:
    tree = ast.parse(single_file(add_model())[0])
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    names += [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets
              if isinstance(t, ast.Name)]  # fmt: skip
    assert len(names) == len(set(names))


def test_ruff_changes_nothing(tmp_path: Path) -> None:
    write_file(add_model(), tmp_path / "kernel.py")
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", "kernel.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
