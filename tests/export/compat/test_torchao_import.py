"""torchao's warnings do not reach a terminal."""

from __future__ import annotations

import subprocess
import sys


def test_torchao_is_imported_in_silence() -> None:
    program = (
        "import sys; from coreai_onnx.export.compat.torchao_import import import_torchao; "
        "import_torchao(); assert 'torchao.quantization' in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_generation_imports_transformers_in_silence() -> None:
    program = "import sys, coreai_onnx.huggingface.generation; assert 'transformers' in sys.modules"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
