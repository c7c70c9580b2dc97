from __future__ import annotations

from coreai_onnx.passes.analysis.amounts import Amount, amount_of
from coreai_onnx.passes.analysis.counts import ONE, Count, Region, count_of, each, joint, spread

SEQ = amount_of("seq")


def test_a_count_knows_its_value_and_its_bound() -> None:
    ramp = Count(Amount(0), (1,), (SEQ,))
    assert (ramp.everywhere, ramp.most) == (None, None)
    assert Count(Amount(5), (0, 0), (SEQ, None)).everywhere == 5
    assert Count(Amount(5), (-1,), (None,)).most == 5
    assert Count(Amount(5), (2,), (Amount(4),)).most == 11
    assert Count(Amount(1) - SEQ, (1,), (SEQ,)).most == 0  # the last is at seq - 1
    assert Count(Amount(5), (2,), (None,)).most is None


def test_axes_of_one_have_no_step() -> None:
    assert count_of(Amount(0), [3, 1], (ONE, SEQ)).steps == (0, 1)


def test_dims_are_joined_as_broadcasting_does() -> None:
    assert joint((SEQ,), (amount_of("batch"), ONE)) == (amount_of("batch"), SEQ)
    assert joint((SEQ,), (amount_of("other"),)) == (None,)


def test_a_count_is_not_spread_over_an_axis_that_may_repeat_it() -> None:
    ramp = Count(Amount(0), (1,), (SEQ,))
    assert spread(ramp, (amount_of("batch"), SEQ)).steps == (0, 1)
    assert spread(ramp, (amount_of("other"),)) is None
    assert spread(ramp, ()) is None


def test_each_changes_all_counts_of_a_region_or_none() -> None:
    ramp = Count(Amount(0), (1,), (SEQ,))
    region = Region((ramp, ramp), (SEQ,))
    wide = each(region, lambda count: spread(count, (ONE, SEQ)))
    assert wide.dims == (ONE, SEQ)
    assert len(wide.excesses) == 2
    assert each(region, lambda count: None) is None
