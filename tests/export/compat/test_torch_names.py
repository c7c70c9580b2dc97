"""A torch without a name that is needed is refused with the name."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from coreai_onnx.errors import TorchVersionError
from coreai_onnx.export.compat.torch_names import require
from tests.rules.tree import REPO

HIDES = """
import torch.utils._sympy.functions as functions
del functions.PythonMod
import coreai_onnx.export.compat.torch_names
"""


def test_a_name_that_is_missing() -> None:
    command = [sys.executable, "-c", HIDES]
    result = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert result.returncode
    last = result.stderr.strip().splitlines()[-1]
    needs = "coreai_onnx.errors.TorchVersionError: coreai_onnx needs torch 2.12, 2.13 or 2.15, this"
    assert last.startswith(needs)
    assert last.endswith("cannot import name 'PythonMod' from 'torch.utils._sympy.functions'")


def test_an_attribute_that_is_missing() -> None:
    require()
    with pytest.raises(TorchVersionError, match=r"Module\._nothing"):
        require(((torch.nn.Module(), ("_buffers", "_nothing")),))
