"""Counts the values that differ between models of the zoo on x86-64 and on 64-bit Arm.

  tools/arm64 --bits                                 # builds the kernels for Arm
  python -m tools.sweep_arm64 [ARCHITECTURE ...]     # docs/models.md; all of them take hours

Each model is optimized with ``target="kernels", deterministic=True`` and run by onnxruntime with
deterministic kernels: here on every target of the processor, and by Debian's Python for Arm with
onnxruntime's wheel for it in an emulator. Needs Debian's qemu-user, and the Python of Debian 12.
Prints a table; ``docs/determinism.md`` has the last result. Not part of ``make test``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

import coreai_onnx
from coreai_onnx.runtime.libraries.library import ops_library_path
from tests.models.zoo import ARCHITECTURES
from tests.support.kernel_targets import OVERRIDE, targets_of_this_machine
from tools.sweep_determinism import LENGTH, ROWS

ARM = Path("build/arm64").resolve()
LIBRARY = ARM / "libcoreai_onnx_ops.so"
_PYTHON = f"python3.{sys.version_info.minor}"
_PACKAGES = (
    f"{_PYTHON}-minimal lib{_PYTHON}-minimal lib{_PYTHON}-stdlib libc6 libstdc++6 libgcc-s1 zlib1g "
    "libexpat1 libffi8 libssl3 libbz2-1.0 liblzma5 libuuid1 libsqlite3-0"
).split()
_CPUINFO = """processor\t: 0
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
_RUN = """
import sys, numpy, onnxruntime
model, inputs, outputs, library = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.use_deterministic_compute = True
options.add_session_config_entry("coreai.deterministic", "1")
options.register_custom_ops_library(library)
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
names = [one.name for one in session.get_outputs()]
numpy.savez(outputs, **dict(zip(names, session.run(names, dict(numpy.load(inputs))))))
"""


def emulated_python(folder: Path) -> list[str]:
    """Return the command of a Python for Arm with onnxruntime, which is unpacked if it is missing.

    Nothing is installed.
    """
    root, site = folder / "root", folder / "site"
    if not site.exists():
        _unpack_debian(folder, root)
        # onnxruntime reads what the processor is, and fails on an x86 one.
        for name in ("proc", "sys/devices/system/cpu"):
            (root / name).mkdir(parents=True)
        (root / "proc" / "cpuinfo").write_text(_CPUINFO)
        for name in ("possible", "present"):
            (root / "sys/devices/system/cpu" / name).write_text("0\n")
        _unpack_wheels(folder / "wheels", site)
    emulator = ["qemu-aarch64", "-cpu", "neoverse-n1", "-L", str(root)]
    return [*emulator, "-E", f"PYTHONPATH={site}", str(root / "usr" / "bin" / _PYTHON)]


def _unpack_debian(folder: Path, root: Path) -> None:
    for name in ("lists/partial", "cache/archives/partial", "packages", "root"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    apt = ["apt-get", "-qq"]
    for option in (
        "APT::Architecture=arm64",
        "APT::Architectures::=arm64",
        f"Dir::State::lists={folder / 'lists'}",
        f"Dir::Cache={folder / 'cache'}",
        "Dir::State::status=/dev/null",
    ):
        apt += ["-o", option]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *_PACKAGES], check=True, cwd=folder / "packages")
    for package in (folder / "packages").glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)


def _unpack_wheels(wheels: Path, site: Path) -> None:
    command = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", str(wheels)]
    command += ["--only-binary=:all:", "--python-version", f"3.{sys.version_info.minor}"]
    for glibc in ("2_17", "2_27", "2_28"):
        command += ["--platform", f"manylinux_{glibc}_aarch64"]
    wanted = [f"{name}=={version(name)}" for name in ("numpy", "onnxruntime")]
    subprocess.run([*command, *wanted], check=True)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)


def results(python: list[str], folder: Path, library: Path, target: str) -> dict[str, np.ndarray]:
    """Run the model of a folder in another process."""
    files = [folder / "model.onnx", folder / "inputs.npz", folder / f"{target}.npz", library]
    environment = {**os.environ, OVERRIDE: target}
    subprocess.run([*python, "-c", _RUN, *map(str, files)], check=True, env=environment)
    with np.load(folder / f"{target}.npz") as found:
        return dict(found)


def differing(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> int:
    """Return how many values differ in any bit."""
    count = 0
    for name, value in one.items():
        pair = [np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (value, other[name])]
        count += int((pair[0] != pair[1]).reshape(value.size, -1).any(1).sum())
    return count


def main() -> int:
    """Print the table."""
    python = emulated_python(ARM / "python")
    here = ops_library_path()
    targets = [name for name in targets_of_this_machine(here) if name not in ("scalar_fma", "amx")]
    print(f"| model | values | differ from neon: {', '.join(targets)} |\n|---|---:|---|")
    for one in ARCHITECTURES:
        if sys.argv[1:] and one.name not in sys.argv[1:]:
            continue
        converter = coreai_onnx.TorchConverter()
        program = converter.add_exported_program(one.export(one.module())).to_onnx(opset_version=23)
        program.optimize(target="kernels", deterministic=True)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            program.save(str(folder / "model.onnx"))
            inputs: dict[str, Any] = {
                name: x.numpy() for name, x in one.arguments(ROWS, LENGTH).items()
            }
            np.savez(folder / "inputs.npz", **inputs)
            expected = results(python, folder, LIBRARY, "neon")
            differ = [
                differing(expected, results([sys.executable], folder, here, target))
                for target in targets
            ]
        values = sum(value.size for value in expected.values())
        print(f"| {one.name} | {values:,} | {', '.join(map(str, differ))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
