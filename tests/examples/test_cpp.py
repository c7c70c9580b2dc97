"""The C++ app: built once, run unchanged on the oldest and the newest onnxruntime."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from tests.compat import older_onnxruntime
from tests.examples import apps, tutorial

pytestmark = pytest.mark.slow
HEADERS = "build/*/debian-headers/usr/include/onnxruntime/onnxruntime_cxx_api.h"


@pytest.fixture(scope="module")
def headers() -> Path:
    """The folder of the headers that ``make build`` unpacked."""
    found = next(iter(sorted(apps.REPO.glob(HEADERS))), None)
    if found is None or shutil.which("cmake") is None:
        pytest.skip("no CMake, or no onnxruntime headers: make build")
    return found.parent


@pytest.fixture(scope="module")
def program(headers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built app."""
    folder = tmp_path_factory.mktemp("cpp")
    command = ["cmake", "-S", apps.EXAMPLES / "cpp", "-B", folder]
    apps.run([*command, f"-DONNXRUNTIME_INCLUDE_DIR={headers}"], folder)
    apps.run(["cmake", "--build", folder], folder)
    return folder / "run_encoder"


def link_release(program: Path, package: Path) -> None:
    """Put a release's library where the app looks for it."""
    (library,) = (package / "capi").glob("libonnxruntime.so.1.*")
    folder = program.parent / "lib"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "libonnxruntime.so.1").symlink_to(library)


@pytest.mark.parametrize("release", ["1.21.1", onnxruntime.__version__])
def test_one_build_runs_on_every_release(
    program: Path, model: Path, kernels: Path, release: str
) -> None:
    newest = release == onnxruntime.__version__
    installed = Path(onnxruntime.__file__).parent
    package = installed if newest else older_onnxruntime.install(release) / "onnxruntime"
    link_release(program, package)
    for library in ([], [kernels]):
        line = apps.run([program, model, *library], program.parent)
        apps.assert_as_python(line, model)


def test_errors_are_told(program: Path, model: Path) -> None:
    link_release(program, Path(onnxruntime.__file__).parent)
    for arguments, code, said in (
        ([], 2, "usage"),
        (["nowhere.onnx"], 1, "error: "),
        ([str(model), "nowhere.so"], 1, "error: "),
    ):
        done = subprocess.run(
            [str(program), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == code
        assert said in done.stderr


def test_the_tutorial(headers: Path, kernels: Path, tmp_path: Path, tutorial_model: Path) -> None:
    tutorial.begin("C++", tmp_path, tutorial_model)
    shutil.copy(kernels, tmp_path / "libkernels.so")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    tutorial.run_commands("C++", tmp_path, HEADERS=str(headers), PATH=path)
