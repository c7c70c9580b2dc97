"""Which tolerance applies."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx.debugging.verdict.tolerances import DEFAULT_TOLERANCES, tolerance_of
from tests.support.tolerances import tolerance


@pytest.mark.parametrize("dtype", sorted(DEFAULT_TOLERANCES))
def test_the_defaults_are_those_of_torch_and_of_our_tests(dtype: str) -> None:
    from torch.testing._comparison import default_tolerances

    relative, absolute = default_tolerances(getattr(torch, dtype))
    assert DEFAULT_TOLERANCES[dtype] == (relative, absolute)
    assert (tolerance(dtype).rtol, tolerance(dtype).atol) == (relative, absolute)


def test_integers_are_exact() -> None:
    assert tolerance_of("y", "int64", None) == (0.0, 0.0)
    assert tolerance_of("y", "bool", None) == (0.0, 0.0)


def test_an_output_comes_before_its_dtype_before_the_default() -> None:
    chosen = {"y": (1.0, 2.0), "float32": (3.0, 4.0)}
    assert tolerance_of("y", "float32", chosen) == (1.0, 2.0)
    assert tolerance_of("z", "float32", chosen) == (3.0, 4.0)
    assert tolerance_of("z", "float16", chosen) == DEFAULT_TOLERANCES["float16"]
    assert tolerance_of("z", "float16", (5.0, 6.0)) == (5.0, 6.0)
