"""Numbers within bounds."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from coreai_onnx.cli.options.numbers import SEED, integer, tolerance


def test_numbers() -> None:
    assert [integer(0)("0"), integer(0)("12"), integer(-1, 3)("3"), SEED(str(2**32 - 1))] == [
        0,
        12,
        3,
        2**32 - 1,
    ]
    assert [tolerance("0"), tolerance("1e-3")] == [0.0, 1e-3]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (integer(0), "1.5", "'1.5' is not an integer"),
        (integer(0), "-1", "-1 is not at least 0"),
        (integer(0, 65535), "65536", "65536 is not from 0 to 65535"),
        (tolerance, "small", "'small' is not a number"),
        (tolerance, "nan", "nan is not a finite number of at least 0"),
        (tolerance, "-0.1", "-0.1 is not a finite number of at least 0"),
    ],
)
def test_numbers_out_of_bounds(read: Callable[[str], float], text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read(text)
    assert str(caught.value) == message
