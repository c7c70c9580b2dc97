"""Constants that 16 bits can hold, and those that they cannot."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.quantization.half.constants import fault, is_fill, narrowed
from tests.support.tolerances import assert_close

HALF, BRAIN = ir.DataType.FLOAT16, ir.DataType.BFLOAT16


def tensor(*values: float) -> ir.Tensor:
    return ir.tensor(np.array(values, np.float32))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ((0.0, 1.0, 65504.0), ""),
        ((1.0, 1e-12), ""),
        ((-3.4e38, 0.0, -np.inf), ""),
        ((1e-12,), "below float16's normal numbers"),
        ((1e-6,), "below float16's normal numbers"),
        ((1e5, 1.0), "the constant 1e+05 exceeds float16's largest"),
    ],
)
def test_faults(values: tuple[float, ...], what: str) -> None:
    found = fault(tensor(*values), HALF)
    assert what in found
    assert bool(found) == bool(what)
    assert fault(tensor(*values), BRAIN) == ""


def test_fills_become_the_largest_number_and_infinities_stay() -> None:
    mask = tensor(-3.4028234e38, 1.5, np.inf)
    assert is_fill(mask)
    assert not is_fill(tensor(1.0, np.inf))
    found = narrowed(mask, HALF, "mask").numpy()
    assert_close(found, np.array([-65504, 1.5, np.inf], np.float16))
    assert np.isfinite(narrowed(mask, BRAIN, "mask").numpy()[0])
