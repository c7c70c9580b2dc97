from __future__ import annotations

import pytest

from coreai_onnx.passes.analysis.affine import (
    ONE,
    AffineExpr,
    AffineMask,
    AffineTensor,
    affine_expr,
    affine_tensor,
    broadcast,
    broadcast_dims,
    transform,
)

SEQ = affine_expr("seq")


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (7, AffineExpr(7)),
        (None, None),
        ("seq", AffineExpr(0, (("seq", 1),))),
        ("past + seq", AffineExpr(0, (("past", 1), ("seq", 1)))),
        ("seq + past", AffineExpr(0, (("past", 1), ("seq", 1)))),
        ("2*batch*seq", AffineExpr(0, (("batch*seq", 2),))),
        ("seq - 1", AffineExpr(-1, (("seq", 1),))),
        ("3*seq - 2*past + 4", AffineExpr(4, (("past", -2), ("seq", 3)))),
        ("-seq + 2", AffineExpr(2, (("seq", -1),))),
        ("(seq//2)", AffineExpr(0, (("(seq//2)", 1),))),
        ("seq//2 + 1", AffineExpr(0, (("seq//2 + 1", 1),))),
        ("seq 2", AffineExpr(0, (("seq 2", 1),))),
    ],
)
def test_dims_are_read_as_sums(dim, expected) -> None:
    assert affine_expr(dim) == expected


def test_expressions_are_added_and_multiplied() -> None:
    total, seq = affine_expr("past + seq"), affine_expr("seq")
    assert total - seq == affine_expr("past")
    assert total - seq - affine_expr("past") == AffineExpr(0)
    assert seq * 2 + 1 == affine_expr("2*seq + 1")
    assert seq * 0 == AffineExpr(0)
    assert (AffineExpr(3).int_value, seq.int_value) == (3, None)


def test_dims_are_never_negative() -> None:
    assert (AffineExpr(3) - affine_expr("seq")).upper_bound == 3
    assert (AffineExpr(3) + affine_expr("seq")).upper_bound is None
    assert AffineExpr(-2).upper_bound == -2


def test_an_affine_tensor_has_a_value_and_a_bound() -> None:
    ramp = AffineTensor(AffineExpr(0), (1,), (SEQ,))
    assert (ramp.splat, ramp.upper_bound) == (None, None)
    assert AffineTensor(AffineExpr(5), (0, 0), (SEQ, None)).splat == 5
    assert AffineTensor(AffineExpr(5), (-1,), (None,)).upper_bound == 5
    assert AffineTensor(AffineExpr(5), (2,), (AffineExpr(4),)).upper_bound == 11
    assert (
        AffineTensor(AffineExpr(1) - SEQ, (1,), (SEQ,)).upper_bound == 0
    )  # the last is at seq - 1
    assert AffineTensor(AffineExpr(5), (2,), (None,)).upper_bound is None


def test_axes_of_one_have_no_step() -> None:
    assert affine_tensor(AffineExpr(0), [3, 1], (ONE, SEQ)).steps == (0, 1)


def test_dims_are_joined_as_broadcasting_does() -> None:
    assert broadcast_dims((SEQ,), (affine_expr("batch"), ONE)) == (affine_expr("batch"), SEQ)
    assert broadcast_dims((SEQ,), (affine_expr("other"),)) == (None,)


def test_an_axis_with_a_step_is_not_broadcast() -> None:
    ramp = AffineTensor(AffineExpr(0), (1,), (SEQ,))
    assert broadcast(ramp, (affine_expr("batch"), SEQ)).steps == (0, 1)
    assert broadcast(ramp, (affine_expr("other"),)) is None
    assert broadcast(ramp, ()) is None


def test_all_constraints_of_a_mask_are_transformed_or_none() -> None:
    ramp = AffineTensor(AffineExpr(0), (1,), (SEQ,))
    mask = AffineMask((ramp, ramp), (SEQ,))
    wide = transform(mask, lambda one: broadcast(one, (ONE, SEQ)))
    assert wide.dims == (ONE, SEQ)
    assert len(wide.constraints) == 2
    assert transform(mask, lambda one: None) is None


def test_axes_are_permuted_and_elements_scaled() -> None:
    plane = AffineTensor(SEQ, (0, 3), (ONE, AffineExpr(4)))
    assert plane.permuted([1]) == AffineTensor(SEQ, (3,), (AffineExpr(4),))
    assert plane.scaled(-1) == AffineTensor(SEQ * -1, (0, -3), (ONE, AffineExpr(4)))
    assert AffineTensor.filled(7, (SEQ,)).splat == 7
    assert AffineMask((plane,), plane.dims).splat is None
