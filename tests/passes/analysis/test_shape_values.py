from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes import open_model
from coreai_onnx.passes.analysis.shape_values import ShapeValue, ShapeValueAnalysis
from tests.passes.rewriting import parse

HEAD = """main (float[batch, 128, 64] x, int64[2] free) => (int64[k] y)
<int64 zero = {0}, int64 one = {1}, int64[1] v0 = {0}, int64[1] v1 = {1}, int64[1] v2 = {2}, int64[1] m1 = {-1},
 int64[2] pair = {1, -3}, int64[0] none = {}, int64[1] end = {9223372036854775807}>
{ s = Shape (x)  """


def dims_of(body: str) -> ShapeValue | None:
    graph = open_model(parse(HEAD + body + "  y = Identity (r) }"))
    (node,) = [n for n in graph.nodes if n.outputs[0].name == "r"]
    return ShapeValueAnalysis().of(node.outputs[0])


@pytest.mark.parametrize(
    ("body", "items", "is_scalar"),
    [
        ("r = Identity (s)", ("batch", 128, 64), False),
        ("r = Shape <start = -2> (x)", (128, 64), False),
        ("r = Shape <end = 1> (x)", ("batch",), False),
        ("r = Gather (s, one)", (128,), True),
        ("r = Gather (s, pair)", (128, "batch"), False),
        ("r = Slice (s, v1, end)", (128, 64), False),
        ("r = Slice (s, v0, m1)", ("batch", 128), False),
        ("r = Slice (s, v1, v2, v0)", (128,), False),
        ("r = Slice (s, v2, v0, v0, m1)", (64, 128), False),
        ("a = Gather (s, zero)  r = Unsqueeze (a, v0)", ("batch",), False),
        ("a = Gather (s, v1)  r = Squeeze (a, v0)", (128,), True),
        ("a = Gather (s, v1)  r = Reshape (a, none)", (128,), True),
        ("a = Gather (s, one)  r = Reshape (a, m1)", (128,), False),
        ("r = Concat <axis = 0> (v2, s, free)", (2, "batch", 128, 64, None, None), False),
        ("r = Mul (s, v2)", (None, 256, 128), False),
        ("r = Mul (s, v1)", ("batch", 128, 64), False),
        ("r = Add (v0, s)", ("batch", 128, 64), False),
        ("r = Sub (s, m1)", (None, 129, 65), False),
        ("r = Div (s, pair_)  ".replace("pair_", "v2"), (None, 64, 32), False),
        ("a = Cast <to = 6> (s)  r = Cast <to = 7> (a)", ("batch", 128, 64), False),
    ],
)
def test_shape_values(body, items, is_scalar) -> None:
    assert dims_of(body) == ShapeValue(items, is_scalar)


@pytest.mark.parametrize(
    "body",
    [
        "r = Identity (free)",
        "r = Size (x)",
        "r = Cast <to = 1> (s)",
        "r = Gather (s, free)",
        "r = Reshape (s, v2)",
        "a = Neg (s)  r = Identity (a)",
        "r = Add (s, free)",
        "r = Add (s, pair)",
        "r = Unsqueeze (s, v0)",
    ],
)
def test_nothing_is_claimed_of_the_rest(body) -> None:
    assert dims_of(body) is None


def test_division_goes_towards_zero_and_not_by_zero() -> None:
    assert dims_of("a = Sub (v0, s)  r = Div (a, pair_)".replace("pair_", "m1")) == ShapeValue(
        (None, 128, 64)
    )
    assert dims_of("r = Div (s, v0)") == ShapeValue((None, None, None))


def test_arrays() -> None:
    assert ShapeValue((3,), is_scalar=True).array(np.dtype(np.int32)).shape == ()
    assert ShapeValue(()).array(np.dtype(np.int64)).shape == (0,)
    assert not ShapeValue(("n",)).is_known()
