"""A kernel library in which one op is deliberately wrong, linked from the built objects."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

SOURCE = "ops/norms/rms_norm.cc"
RIGHT, WRONG = "rows.row_size, rows.eps,", "rows.row_size, rows.eps + 0.25F,"
"""``rms_norm`` adds too much to the mean square; ``skip_rms_norm`` shares the code."""

_OBJECTS = ("CMakeFiles/coreai_kernels.dir", "CMakeFiles/coreai_onnx_ops.dir")


def build_wrong_library(library: Path, folder: Path) -> Path:
    """Compile the op with a wrong epsilon, and link it with the other objects.

    Args:
        library: The right library, in the folder of its build.
        folder: Receives the wrong one.
    """
    build = library.resolve().parent
    commands = json.loads((build / "compile_commands.json").read_text())
    entry = next(one for one in commands if one["file"].endswith(SOURCE))
    text = Path(entry["file"]).read_text()
    assert RIGHT in text
    source, built = folder / "rms_norm.cc", folder / "rms_norm.o"
    source.write_text(text.replace(RIGHT, WRONG))
    words = shlex.split(entry["command"])
    old = _output(words)
    words[words.index("-o") + 1], words[words.index("-c") + 1] = str(built), str(source)
    subprocess.run(words[: words.index("-c") + 2], cwd=build, check=True)
    outputs = [_output(shlex.split(one["command"])) for one in commands]
    others = [name for name in outputs if name.startswith(_OBJECTS) and name != old]
    exports = Path(entry["file"]).parents[2] / "cmake" / "exports.map"
    made = folder / library.name
    flags = ["-shared", f"-Wl,--version-script={exports}", "-o", str(made)]
    subprocess.run([words[0], *flags, *others, str(built)], cwd=build, check=True)
    return made


def _output(words: list[str]) -> str:
    return words[words.index("-o") + 1]
