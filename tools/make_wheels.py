"""Build the wheels of every platform on this machine, with one cross compiler, and check them.

python tools/make_wheels.py                    all wheels and the source distribution, into dist/
python tools/make_wheels.py --only win_amd64   one platform
python tools/make_wheels.py --check            checks what is in dist/ and builds nothing
python tools/make_wheels.py --tests            builds the C++ tests instead, and runs them

The compiler is Zig's Clang (the package ziglang), which brings the C and C++ runtimes of each
system. The Python part of every wheel is the same; CMake installs the kernels and their headers
into a copy of it. The bytes of a wheel depend on the commit, on tools/wheel_requirements.txt and on
the headers of onnxruntime and Highway (those of Debian 13, or of the folder COREAI_HEADERS).

The tools are installed into build/wheels/env. Debian's llvm reads the libraries of all systems.
--tests needs Debian's googletest, and wine64, qemu-user with libc6-arm64-cross, or musl to run the
programs of other systems.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "wheels"
BIN = BUILD / "env" / "bin"
PYTHON = str(BIN / "python")
REQUIREMENTS = ROOT / "tools" / "wheel_requirements.txt"
LARGEST = 4 << 20
"""The size limit of a wheel in bytes: little beside those of torch and onnxruntime."""
EXPORTS = {"RegisterCustomOps", "CoreaiOnnxOpsInfo"}

_UNHIDDEN = re.compile(r"_Z(n[aw]m|d[al]Pv)\w*|__dso_handle|_mh_dylib_header")
"""What Zig's linker for macOS cannot hide: its own symbols, and the operators new and delete."""


@dataclass(frozen=True)
class Platform:
    """A platform: the tag of its wheel, and its names in the tools.

    Attributes:
        tag: The platform tag of the wheel.
        target: Zig's name.
        system: CMake's name of the system.
        processor: CMake's name of the processor.
        format: What llvm-readobj calls the format of a library.
        libraries: The shared libraries that every installation of the system has, as a pattern.
        emulator: The command that runs a program of the platform on x86-64 Linux, as a list of
            CMake; empty without one.
    """

    tag: str
    target: str
    system: str
    processor: str
    format: str
    libraries: str
    emulator: str = ""


_GLIBC = r"lib(c|m|pthread|dl|rt)\.so\.\d|ld-linux-(x86-64\.so\.2|aarch64\.so\.1)"
_MUSL = r"libc\.musl-x86_64\.so\.1"
_WINDOWS = r"(?i:kernel32|ntdll|api-ms-win-crt-\w+-l1-1-0)\.dll"
_MACOS = r"/usr/lib/libSystem\.B\.dylib"

PLATFORMS = (
    # tag, target, system, processor, format, libraries, emulator
    Platform("manylinux_2_28_x86_64", "x86_64-linux-gnu.2.28", "Linux", "x86_64",
             "elf64-x86-64", _GLIBC, "env"),
    Platform("manylinux_2_28_aarch64", "aarch64-linux-gnu.2.28", "Linux", "aarch64",
             "elf64-littleaarch64", _GLIBC, "qemu-aarch64;-L;/usr/aarch64-linux-gnu"),
    Platform("musllinux_1_2_x86_64", "x86_64-linux-musl", "Linux", "x86_64",
             "elf64-x86-64", _MUSL, "/lib/ld-musl-x86_64.so.1"),
    Platform("win_amd64", "x86_64-windows-gnu", "Windows", "AMD64",
             "COFF-x86-64", _WINDOWS, "/usr/lib/wine/wine64"),
    Platform("macosx_11_0_arm64", "aarch64-macos.11.0", "Darwin", "arm64",
             "Mach-O arm64", _MACOS),
    Platform("macosx_11_0_x86_64", "x86_64-macos.11.0", "Darwin", "x86_64",
             "Mach-O 64-bit x86-64", _MACOS),
)  # fmt: skip


@dataclass(frozen=True)
class Library:
    """What llvm-readobj and llvm-nm say about a shared library."""

    format: str
    exports: frozenset[str]
    needed: frozenset[str]


def main() -> int:
    """Build and check what the options name; return 1 if a check fails."""
    options = _parser().parse_args()
    platforms = [p for p in PLATFORMS if p.tag in (options.only or p.tag)]
    _install_tools()
    if options.tests:
        return max(map(_run_tests, platforms))
    if not options.check:
        pure = _build_pure(options.out, with_sdist=options.only is None)
        for platform in platforms:
            print(f"{platform.tag}: compiling", flush=True)
            _pack(pure, _install_kernels(platform), platform, options.out)
    faults = [fault for platform in platforms for fault in _check(platform, options.out)]
    files = sorted([*options.out.glob("*.whl"), *options.out.glob("*.tar.gz")])
    print(_run([PYTHON, "-m", "twine", "check", "--strict", *map(str, files)]))
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


def _install_tools() -> None:
    """Create the environment of the tools, and a program for each tool of Zig.

    CMake accepts no compiler with arguments, such as ``python -m ziglang c++``.
    """
    installed = BUILD / "env" / "installed.txt"
    if not installed.is_file() or installed.read_text() != REQUIREMENTS.read_text():
        _run([sys.executable, "-m", "venv", "--clear", str(BUILD / "env")])
        _run([PYTHON, "-m", "pip", "install", "-q", "--requirement", str(REQUIREMENTS)])
        shutil.copy(REQUIREMENTS, installed)
    for name in ("c++", "ar", "ranlib"):
        program = BIN / f"zig-{name}"
        program.write_text(f'#!/bin/sh\nexec "{PYTHON}" -m ziglang {name} "$@"\n')
        program.chmod(0o755)
    for name in ("llvm-readobj", "llvm-nm"):
        if shutil.which(name) is None:
            sys.exit(f"make_wheels: {name} is missing; as root: apt-get install llvm")


def _headers() -> Path:
    """Return the folder with the headers of onnxruntime and Highway."""
    if given := os.environ.get("COREAI_HEADERS"):
        return Path(given)
    folder = BUILD / "debian-headers"
    if not (folder / "usr" / "include" / "hwy").is_dir():
        script = ROOT / "custom_ops" / "cmake" / "fetch_debian_headers.sh"
        _run(["sh", str(script), str(folder), "libonnxruntime-dev", "libhwy-dev"])
    return folder / "usr" / "include"


def _build_pure(out: Path, *, with_sdist: bool) -> Path:
    """Build the wheel without kernels, and the source distribution into `out`."""
    folder = BUILD / "pure"
    shutil.rmtree(folder, ignore_errors=True)
    build = [PYTHON, "-m", "build", "--no-isolation"]
    _run([*build, "--wheel", "--outdir", str(folder), "-Cwheel.cmake=false", str(ROOT)])
    if with_sdist:
        _run([*build, "--sdist", "--outdir", str(out), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def _install_kernels(platform: Platform) -> Path:
    """Compile the kernels for a platform; return the folder with what a wheel adds."""
    installed = BUILD / platform.tag / "installed"
    shutil.rmtree(installed, ignore_errors=True)
    build = _compile(platform, "coreai_onnx_ops")
    _run(["cmake", "--install", str(build), "--prefix", str(installed)])
    if "musl" in platform.target:
        # Zig calls musl by the name that it has when it is built; auditwheel knows Alpine's.
        (library,) = installed.glob("coreai_onnx/runtime/lib/*.so")
        _run(["patchelf", "--replace-needed", "libc.so", "libc.musl-x86_64.so.1", str(library)])
    return installed


def _compile(platform: Platform, target: str, **define: str) -> Path:
    """Configure and compile a target of CMake for a platform; return the build folder."""
    build = BUILD / platform.tag / "cmake"
    headers = _headers()
    version = re.search(r'__version__ = "(.+)"', (ROOT / "coreai_onnx/version.py").read_text())
    assert version is not None
    define |= {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_SYSTEM_NAME": platform.system,
        "CMAKE_SYSTEM_PROCESSOR": platform.processor,
        "CMAKE_CXX_COMPILER": f"{BIN}/zig-c++",
        "CMAKE_CXX_COMPILER_TARGET": platform.target,
        "CMAKE_AR": f"{BIN}/zig-ar",
        "CMAKE_RANLIB": f"{BIN}/zig-ranlib",
        # Linking a program would build the C++ runtime once more, and takes minutes.
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",
        "CMAKE_INSTALL_NAME_TOOL": "true",
        "CMAKE_OSX_SYSROOT": "",
        # Zig adds debug information and the checks of undefined behavior unless told not to. Paths
        # of this machine would make the bytes depend on it.
        "CMAKE_CXX_FLAGS": "-g0 -fno-sanitize=undefined"
        f" -ffile-prefix-map={ROOT}=. -ffile-prefix-map={headers}=include",
        "CMAKE_MODULE_LINKER_FLAGS": "-s",
        "ONNXRUNTIME_INCLUDE_DIR": f"{headers}/onnxruntime",
        "HIGHWAY_INCLUDE_DIR": str(headers),
        "COREAI_OPS_VERSION": version[1],
    }
    settings = [f"-D{name}={value}" for name, value in define.items()]
    _run(["cmake", "-S", str(ROOT / "custom_ops"), "-B", str(build), "-G", "Ninja", *settings])
    jobs = os.environ.get("JOBS", "2")
    _run(["cmake", "--build", str(build), "--parallel", jobs, "--target", target])
    return build


def _run_tests(platform: Platform) -> int:
    """Build the C++ tests for a platform and run them, in its emulator; return 0 if they pass."""
    program = platform.emulator.partition(";")[0]
    if shutil.which(program) is None:
        print(f"{platform.tag}: no tests, because this machine has no {program or 'emulator'}")
        return 0
    print(f"{platform.tag}: compiling the tests", flush=True)
    build = _compile(
        platform,
        "all",
        COREAI_OPS_TESTS="ON",
        COREAI_OPS_GTEST_SOURCE="/usr/src/googletest",
        # A program that is given to musl's loader would execute the loader again, not itself.
        CMAKE_CROSSCOMPILING_EMULATOR="env" if "musl" in platform.target else platform.emulator,
        # Zig links programs for musl statically, and those load no library.
        CMAKE_EXE_LINKER_FLAGS="-dynamic" if "musl" in platform.target else "",
    )
    return subprocess.call([f"{BIN}/ctest", "--test-dir", str(build), "--output-on-failure"])


def _pack(pure: Path, installed: Path, platform: Platform, out: Path) -> None:
    """Write the wheel: the pure one, with the kernels and their headers."""
    folder = BUILD / platform.tag / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    _run([PYTHON, "-m", "wheel", "unpack", "--dest", str(folder), str(pure)])
    (unpacked,) = folder.iterdir()
    shutil.copytree(installed, unpacked, dirs_exist_ok=True)
    (description,) = unpacked.glob("*.dist-info/WHEEL")
    description.write_text(platform_description(description.read_text(), platform.tag))
    # Modes and times in the archive do not depend on the machine: the times are the commit's.
    for path in unpacked.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.parent.name == "lib" else 0o644)
    out.mkdir(parents=True, exist_ok=True)
    time = _run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]).strip()
    pack = [PYTHON, "-m", "wheel", "pack", "--dest-dir", str(out), str(unpacked)]
    _run(pack, SOURCE_DATE_EPOCH=time)


def platform_description(text: str, tag: str) -> str:
    """Return the file WHEEL of a platform's wheel, from that of the pure one."""
    text = text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    return re.sub(r"^Tag: .*$", f"Tag: py3-none-{tag}", text, flags=re.MULTILINE)


def _check(platform: Platform, out: Path) -> Iterator[str]:
    """Check the wheel of a platform: print what it is, yield what is wrong with it."""
    wheels = list(out.glob(f"*-py3-none-{platform.tag}.whl"))
    if len(wheels) != 1:
        yield f"{platform.tag}: {len(wheels)} wheels in {out}, expected 1"
        return
    wheel, size = wheels[0], wheels[0].stat().st_size
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.startswith("coreai_onnx/runtime/lib/")]
        library = _read_library(Path(archive.extract(name, BUILD / platform.tag / "checked")))
    print(f"{wheel.name}: {size / 2**20:.2f} MiB, needs {', '.join(sorted(library.needed))}")
    faults = faults_of(platform, size, library)
    if platform.system == "Linux":
        report = _run([PYTHON, "-m", "auditwheel", "show", str(wheel)])
        faults += audit_faults(platform.tag, report)
    yield from (f"{wheel.name}: {fault}" for fault in faults)


def faults_of(platform: Platform, size: int, library: Library) -> list[str]:
    """Return what is wrong with a wheel of some bytes and its library."""
    faults = []
    if size > LARGEST:
        faults.append(f"{size:,} bytes, at most {LARGEST:,} are allowed")
    if library.format != platform.format:
        faults.append(f"the library is {library.format}, expected {platform.format}")
    exports = library.exports
    if platform.system == "Darwin":
        exports = frozenset(name for name in exports if not _UNHIDDEN.fullmatch(name))
    if exports != EXPORTS:
        faults.append(f"exports {sorted(exports)}, expected {sorted(EXPORTS)}")
    foreign = [n for n in sorted(library.needed) if not re.fullmatch(platform.libraries, n)]
    if foreign:
        faults.append(f"needs {', '.join(foreign)}, which not every system has")
    return faults


def audit_faults(tag: str, report: str) -> list[str]:
    """Return what is wrong with a Linux wheel by auditwheel's report."""
    words = " ".join(report.split())
    form = r"(\w+?)_(\d+)_(\d+)_(\w+)"
    family, major, minor, processor = re.findall(form, tag)[0]
    # What runs on an older system runs on a newer one.
    if any(
        (f, p) == (family, processor) and (int(a), int(b)) <= (int(major), int(minor))
        for f, a, b, p in re.findall(f'following platform tag: "{form}"', words)
    ):
        return []
    return [f"auditwheel does not find it consistent with {tag}: {words}"]


def _read_library(path: Path) -> Library:
    if path.suffix == ".dll":
        exports = _run(["llvm-readobj", "--coff-exports", str(path)])
    else:
        dynamic = [] if path.suffix == ".dylib" else ["--dynamic"]
        command = ["llvm-nm", "--extern-only", "--defined-only", "--just-symbol-name", *dynamic]
        exports = _run([*command, str(path)])
    return parse_library(_run(["llvm-readobj", "--needed-libs", str(path)]), exports)


def parse_library(description: str, exports: str) -> Library:
    """Return what the outputs of llvm-readobj and llvm-nm say.

    Args:
        description: The output of ``llvm-readobj --needed-libs``.
        exports: That of ``llvm-readobj --coff-exports``, or of ``llvm-nm``, a symbol per line.
    """
    form = re.search(r"^Format: (.*)$", description, re.MULTILINE)
    needed = re.search(r"NeededLibraries \[\n(.*?)\]", description, re.DOTALL)
    assert form is not None
    assert needed is not None
    if "Export {" in exports:
        names = re.findall(r"^  Name: (\S+)", exports, re.MULTILINE)
    else:  # macOS's symbols begin with an underscore, and GNU's may end with a version
        names = [line.removeprefix("_").partition("@")[0] for line in exports.split()]
    # llvm-readobj lists the name of a macOS library among those that it needs.
    own = re.findall(r"^File: (?:.*/)?(.*)$", description, re.MULTILINE)
    return Library(form[1], frozenset(names), frozenset(needed[1].split()) - {*own})


def _run(command: list[str], **environment: str) -> str:
    """Run a command and return its output; if it fails, exit with what it said."""
    variables = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **environment}
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
    return result.stdout


def _parser() -> argparse.ArgumentParser:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--only", action="append", choices=[p.tag for p in PLATFORMS])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--check", action="store_true", help="check the wheels that are there")
    parser.add_argument("--tests", action="store_true", help="build and run the C++ tests")
    return parser


if __name__ == "__main__":
    sys.exit(main())
