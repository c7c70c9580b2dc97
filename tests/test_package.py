"""The package's public names."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import UnionType

import pytest

import coreai_onnx
from coreai_onnx.errors import DistributionConflictError


def test_every_public_name_has_a_home() -> None:
    assert set(coreai_onnx.__all__) == {*coreai_onnx._HOMES, "__version__"}


@pytest.mark.parametrize("name", sorted(coreai_onnx._HOMES))
def test_a_public_name_is_what_its_home_has(name: str) -> None:
    value = getattr(coreai_onnx, name)
    assert callable(value) or isinstance(value, UnionType)
    assert value is getattr(import_module(coreai_onnx._HOMES[name]), name)
    assert name in dir(coreai_onnx)


def test_composite_ops_is_there_without_an_import_of_its_own() -> None:
    code = "import coreai_onnx; print(coreai_onnx.composite_ops.RMSNorm.__name__)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(coreai_onnx.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "RMSNorm\n"


def test_other_names_are_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'to_coreml'"):
        coreai_onnx.to_coreml  # noqa: B018 - reading it is the test


WITH_AN_OLD_TORCH = """
import sys
import torch.export
del torch.export.Dim
torch.__version__ = "2.1.2+cpu"
import coreai_onnx
from coreai_onnx.cli import main
assert main(["convert", "torch.nn:Identity", "-o", "model.onnx"]) == 2
try:
    coreai_onnx.patch_for_externalization
except coreai_onnx.errors.TorchVersionError as error:
    print(error, file=sys.stderr)
coreai_onnx.session
"""


def test_an_old_torch_is_refused_in_one_line_and_runs_models() -> None:
    command = [sys.executable, "-c", WITH_AN_OLD_TORCH]
    folder = Path(coreai_onnx.__file__).parent.parent
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    needs = "coreai_onnx needs torch 2.12, 2.13 or 2.15, this is torch 2.1.2+cpu: "
    missing = f"{needs}cannot import name 'Dim' from 'torch.export'"
    assert result.stderr.splitlines() == [f"error: {missing}", missing]


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
sys.modules["onnx_graphsurgeon"] = None
import numpy as np
import coreai_onnx
from coreai_onnx.cli import main
from coreai_onnx.debugging import inspect_model, time_interleaved
from tests.support.small_models import counter_model
program = coreai_onnx.OnnxProgram({"main": counter_model()})
assert program.run(np.ones(2, np.float32), kernels=False)["y"].tolist() == [1, 1]
assert coreai_onnx.session(program, kernels=False).states == ("count",)
assert main(["run", "nowhere.onnx"]) == 2
assert main(["inspect", "nowhere.onnx"]) == 2
"""


TORCH_FOR_A_BODY = """
import sys
import onnx.parser, onnx_ir
from coreai_onnx import OnnxProgram

def optimized(text):
    text = '<ir_version: 10, opset_import: ["": 23]> main (float[2, 8] x' + text
    program = OnnxProgram({"main": onnx_ir.from_proto(onnx.parser.parse_model(text))})
    return program.optimize()

plain = optimized(") => (float[2, 8] y) { a = Identity (x)  y = Neg (a) }")
assert plain.pass_report.counts["remove_identities"] == 1
assert "torch" not in sys.modules
norm = optimized(''', float[8] w) => (float[2, 8] y) <float two = {2.0}, int64[1] axes = {-1},
  float eps = {0.00001}> { square = Pow (x, two)  mean = ReduceMean (square, axes)
  sum = Add (mean, eps)  root = Sqrt (sum)  normal = Div (x, root)  y = Mul (normal, w) }''')
assert norm.composites() == {"ai.coreai::rms_norm": 1}
assert "torch" in sys.modules
"""


def test_what_runs_models_needs_neither_torch_nor_graph_surgeon(repo: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


SERVING_EXPORTS_NOTHING = """
import sys
import coreai_onnx.huggingface.generation
assert "coreai_onnx.converter" not in sys.modules
from coreai_onnx.huggingface import export_model
assert "coreai_onnx.converter" in sys.modules
try:
    coreai_onnx.huggingface.missing
except AttributeError as error:
    assert "has no attribute 'missing'" in str(error)
"""


@pytest.mark.parametrize("code", [TORCH_FOR_A_BODY, SERVING_EXPORTS_NOTHING])
def test_imports_wait_until_they_are_needed(code: str, repo: Path) -> None:
    """Those of torch until a pass creates a composite, those of exporting until a model is."""
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repo,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def imported_beside(folder: Path, distribution: str) -> subprocess.CompletedProcess[str]:
    """Import the package from a folder that also has the metadata of another distribution."""
    (folder / "coreai_onnx").symlink_to(Path(coreai_onnx.__file__).parent)
    (folder / distribution).mkdir()
    # Without site packages, where an editable installation would precede the folder.
    return subprocess.run(
        [sys.executable, "-S", "-c", "import coreai_onnx; print(coreai_onnx.__version__)"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_other_distribution_of_this_name_is_refused(tmp_path: Path) -> None:
    result = imported_beside(tmp_path, "coreai_onnx-1.2.1.dist-info")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "coreai_onnx.errors.DistributionConflictError: coreai-onnx and coreai-onnx-bridge "
        "overwrite each other's files, since both install the package coreai_onnx: run "
        "`pip uninstall -y coreai-onnx coreai-onnx-bridge`, then install coreai-onnx-bridge again"
    )
    assert issubclass(DistributionConflictError, ImportError)


def test_the_own_distribution_is_not_refused(tmp_path: Path) -> None:
    result = imported_beside(tmp_path, "coreai_onnx_bridge-0.1.0.dist-info")
    assert (result.returncode, result.stdout) == (0, f"{coreai_onnx.__version__}\n")
