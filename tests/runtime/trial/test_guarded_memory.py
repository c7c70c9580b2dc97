"""Arrays between guard pages: their contents, and the end of a process that leaves them."""

from __future__ import annotations

import signal
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from coreai_onnx.runtime.trial.guarded_memory import Edge, guarded_input, guarded_output
from tests.support.tolerances import assert_close


@pytest.mark.parametrize("edge", ["start", "end"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (40, 1000)])
@pytest.mark.parametrize("dtype", [np.bool_, np.float32, np.int64, ml_dtypes.bfloat16])
def test_an_input_is_a_copy_and_an_output_is_not_zero(
    edge: Edge, shape: tuple[int, ...], dtype: type
) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    copy = guarded_input(array, edge)
    assert_close(copy, array)
    assert copy.dtype == array.dtype
    output = guarded_output(shape, array.dtype, edge)
    assert (output.shape, output.dtype) == (shape, array.dtype)
    assert output.view(np.uint8).all() if output.ndim else output != 0
    output[...] = array
    assert_close(output, array)


SCRIPT = """
import ctypes, sys
import numpy as np
from coreai_onnx.runtime.trial.guarded_memory import guarded_input, guarded_output
x = guarded_{what}(np.ones(3, np.float32), "{edge}") if "{what}" == "input" else guarded_output(
    (3,), np.dtype(np.float32), "{edge}")
place = ctypes.c_float.from_address(x.ctypes.data + {offset})
{access}
"""


@pytest.mark.parametrize(
    ("what", "edge", "offset", "access", "ends"),
    [
        ("output", "end", 8, "place.value = 1", False),
        ("output", "end", 12, "place.value = 1", True),
        ("output", "end", 4096 * 8, "place.value = 1", True),
        ("output", "start", 0, "place.value = 1", False),
        ("output", "start", -4, "place.value = 1", True),
        ("input", "end", 8, "place.value", False),
        ("input", "end", 12, "place.value", True),
        ("input", "start", -4, "place.value", True),
        ("input", "start", 0, "place.value = 1", True),
    ],
)
def test_access_outside_ends_the_process(
    what: str, edge: Edge, offset: int, access: str, ends: bool
) -> None:
    script = SCRIPT.format(what=what, edge=edge, offset=offset, access=access)
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    code = -signal.SIGSEGV if sys.platform == "linux" else -signal.SIGBUS
    assert done.returncode == (code if ends else 0), done.stderr.decode()
