"""Run Python as if this checkout were not installed: its editable install would come first.

An editable install puts a finder in front of ``sys.path``, so a folder that a test puts on the
path could never be imported instead of the checkout. The finder comes from a ``.pth`` file, which
Python reads only where ``site`` runs: ``-S`` leaves it out and the packages come by the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def run_uninstalled(
    code: str, *arguments: str, folder: Path, path: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in ``folder`` with ``path`` and the installed packages, without the checkout."""
    places = [*path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    environment.pop("COREAI_ONNX_OPS", None)
    return subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
