from __future__ import annotations

import pytest

from coreai_onnx.passes.analysis.amounts import Amount, amount_of


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (7, Amount(7)),
        (None, None),
        ("seq", Amount(0, (("seq", 1),))),
        ("past + seq", Amount(0, (("past", 1), ("seq", 1)))),
        ("seq + past", Amount(0, (("past", 1), ("seq", 1)))),
        ("2*batch*seq", Amount(0, (("batch*seq", 2),))),
        ("seq - 1", Amount(-1, (("seq", 1),))),
        ("3*seq - 2*past + 4", Amount(4, (("past", -2), ("seq", 3)))),
        ("-seq + 2", Amount(2, (("seq", -1),))),
        ("(seq//2)", Amount(0, (("(seq//2)", 1),))),
        ("seq//2 + 1", Amount(0, (("seq//2 + 1", 1),))),
        ("seq 2", Amount(0, (("seq 2", 1),))),
    ],
)
def test_dims_are_read_as_sums(dim, expected) -> None:
    assert amount_of(dim) == expected


def test_amounts_are_added_and_multiplied() -> None:
    total, seq = amount_of("past + seq"), amount_of("seq")
    assert total - seq == amount_of("past")
    assert total - seq - amount_of("past") == Amount(0)
    assert seq * 2 + 1 == amount_of("2*seq + 1")
    assert seq * 0 == Amount(0)
    assert (Amount(3).number, seq.number) == (3, None)


def test_dims_are_never_negative() -> None:
    assert (Amount(3) - amount_of("seq")).most == 3
    assert (Amount(3) + amount_of("seq")).most is None
    assert Amount(-2).most == -2
