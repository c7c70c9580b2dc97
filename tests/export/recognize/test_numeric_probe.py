"""How a replacement is compared with its original."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from coreai_onnx.export.recognize.numeric_probe import (
    difference,
    first_line,
    probe,
    relative_tolerance,
)

ONE = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("given", "wanted", "reason"),
    [
        (ONE, ONE + 1e-6, ""),
        ((ONE, None, 3), (ONE, None, 3), ""),
        (ONE[:0], ONE[:0], ""),
        (ONE * 0, ONE * 0, ""),
        (ONE.half(), (ONE * 1.005).half(), ""),
        (ONE, ONE * 1.005, "the result differs by 0.005"),
        (ONE * float("nan"), ONE, "the result differs by nan"),
        (ONE, ONE * float("nan"), "the result differs by nan"),
        (ONE, ONE.double(), "gives torch.float32 (2, 3), the original torch.float64 (2, 3)"),
        (ONE, ONE[0], "gives torch.float32 (2, 3), the original torch.float32 (3,)"),
        (ONE, (ONE, ONE), "returns another structure"),
        ((ONE, 3), (ONE, 4), "returns 3, the original 4"),
    ],
)
def test_differences(given: Any, wanted: Any, reason: str) -> None:
    found, distance = difference(given, wanted)
    assert found.endswith(reason)
    assert bool(found) == bool(reason)
    assert distance >= 0 or math.isnan(distance)


def test_the_first_line_of_an_error_or_its_kind() -> None:
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"


def test_the_first_difference_of_all_cases_is_described() -> None:
    cases = [{"x": ONE}, {"x": ONE * 3}]
    assert probe(torch.abs, lambda x: x, ({"input": ONE},)).startswith("it fails on random inputs")
    assert not probe(lambda x: x.abs(), lambda x: x, cases)
    found = probe(lambda x: x * 2, lambda x: x.clamp(max=2) * 2, cases)
    assert found == "the result differs by 0.33 on random inputs"
    assert not probe(lambda x: x * 2, lambda x: x.clamp(max=2) * 2, cases[:1])


def test_low_precision_has_a_larger_tolerance() -> None:
    assert relative_tolerance(torch.bfloat16) == 100 * relative_tolerance(torch.float32)
