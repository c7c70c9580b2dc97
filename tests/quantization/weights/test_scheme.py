"""Schemes: what they allow, and the sizes of groups."""

from __future__ import annotations

import pytest

from coreai_onnx.errors import QuantizationError
from coreai_onnx.quantization.weights.scheme import Scheme, fitting_sizes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 5}, "bits=5; choose from 8, 4, 3, 2"),
        ({"bits": True}, "bits=True"),
        ({"method": "best"}, "method='best'; choose from rtn, hqq"),
        ({"activation_bits": 4}, "activation_bits=4; choose from 0, 8"),
        ({"scale_dtype": "int8"}, "scale_dtype='int8'; choose from float16, float32"),
        ({"group_size": -1}, "group_size=-1; give a positive number, or 0"),
        ({"group_size": 2.0}, "group_size=2.0"),
        ({"group_size": 12, "bits": 3}, "do not fill whole bytes\n  choose a multiple of 8"),
    ],
)
def test_bad_values_are_errors(fields, message) -> None:
    with pytest.raises(QuantizationError, match=message):
        Scheme(**fields)


def test_a_group_divides_a_row_into_whole_bytes() -> None:
    assert Scheme(group_size=32).group_of(96) == 32
    assert Scheme(group_size=32).group_of(100) == 0
    assert Scheme(group_size=0).group_of(100) == 100
    assert Scheme(bits=3, group_size=0).group_of(100) == 0


def test_sizes_that_fit() -> None:
    assert fitting_sizes(100, 4) == [20, 50, 100]
    assert fitting_sizes(96, 3) == [16, 24, 32, 48, 96]
    assert fitting_sizes(17, 8) == [17]
    assert fitting_sizes(17, 4) == []


def test_a_palette_has_no_zero_points() -> None:
    assert Scheme(method="palette").is_symmetric
    assert not Scheme(method="rtn").is_symmetric
    assert Scheme(method="rtn", symmetric=True).is_symmetric
    assert str(Scheme(bits=3, group_size=0)) == "3 bits, one group per row, hqq"
