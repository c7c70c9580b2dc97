from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.analysis.quantized_weights import QuantizedWeight, quantized_weight
from coreai_onnx.passes.engine.surgeon import open_model
from tests.passes.rewriting import parse, run
from tests.support.tolerances import assert_close

STEPS = np.random.default_rng(0).integers(-8, 8, (4, 6)).astype(np.int8)
HEAD = """main () => (float[{shape}] w) <{steps}, float[{form}] s = {{{scales}}}, int8[{form}] z = {{{zeros}}},
  int8 one = {{1}}, uint8 two = {{2}}, int64[2] flat = {{{flat}}}, int64[3] groups = {{4, 2, 3}}, int64[3] turns = {{2, 2, 6}}> {{ {body} }}"""
GROUPS = " int8[4, 2, 3] g = Reshape (q, groups)  float[4, 2, 3] f = Cast <to = 1> (g)  float[4, 2, 1] h = Cast <to = 1> (z) "
ENDS = " w = Reshape (p, flat)"


def text(body: str, form: str, **change: str) -> str:
    count = int(np.prod([int(n) for n in form.split(",")]))
    rng = np.random.default_rng(1)
    values = {
        "scales": ", ".join(map(str, rng.random(count) + 0.5)),
        "zeros": ", ".join(map(str, rng.integers(-8, 8, count))),
        "steps": f"int8[4, 6] q = {{{', '.join(map(str, STEPS.ravel()))}}}",
        "shape": "4, 6",
    }
    values |= change
    return HEAD.format(form=form, body=body, flat=values["shape"], **values)


def found(written: str) -> QuantizedWeight | None:
    (result,) = open_model(parse(written)).outputs
    return quantized_weight(result)


@pytest.mark.parametrize(
    ("body", "form", "axis", "block"),
    [
        ("w = DequantizeLinear <axis = 1, block_size = 3> (q, s, z)", "4, 2", 1, 3),
        ("w = DequantizeLinear <axis = -1, block_size = 3> (q, s)", "4, 2", 1, 3),
        ("w = DequantizeLinear <axis = 1, block_size = 4> (q, s, z)", "4, 2", 1, 4),
        ("w = DequantizeLinear <axis = 0, block_size = 2> (q, s, z)", "2, 6", 0, 2),
        ("w = DequantizeLinear <axis = 0> (q, s, z)", "4", 1, 6),
        ("w = DequantizeLinear <axis = 1> (q, s, z)", "6", 0, 4),
        (GROUPS + "float[4, 2, 3] d = Sub (f, h)  float[4, 2, 3] p = Mul (d, s)" + ENDS, "4, 2, 1", 1, 3),
        (GROUPS + "float[4, 2, 3] d = Add (h, f)  float[4, 2, 3] p = Mul (s, d)" + ENDS, "4, 2, 1", 1, 3),
        (GROUPS + "float[4, 2, 3] p = Mul (s, f)" + ENDS, "4, 2, 1", 1, 3),
        ("int8[4, 2, 3] g = Reshape (q, groups)  int8[4, 2, 3] a = Sub (g, one)  int8[4, 2, 3] b2 = Sub (a, z)  int32[4, 2, 3] i = Cast <to = 6> (b2)  float[4, 2, 3] f = Cast <to = 1> (i)  float[4, 2, 3] p = Mul (f, s)" + ENDS, "4, 2, 1", 1, 3),
        ("int8[2, 2, 6] g = Reshape (q, turns)  float[2, 2, 6] f = Cast <to = 1> (g)  float[2, 1, 6] h = Cast <to = 1> (z)  float[2, 2, 6] d = Sub (f, h)  float[2, 2, 6] p = Mul (d, s)" + ENDS, "2, 1, 6", 0, 2),
        ("float[4, 6] f = Cast <to = 1> (q)  w = Mul (f, s)", "1, 6", 0, 4),
        ("float[4, 6] f = Cast <to = 1> (q)  w = Mul (f, s)", "4, 1", 1, 6),
    ],
)  # fmt: skip
def test_matrices_are_taken_apart(body: str, form: str, axis: int, block: int) -> None:
    written = text(body, form)
    weight = found(written)
    assert weight is not None
    assert (weight.axis, weight.block, weight.shape) == (axis, block, (4, 6))
    steps, scales = weight.steps.values(), weight.scales.values()
    assert steps is not None
    assert scales is not None
    parts = [weight.zeros, weight.per_block(scales)]
    zeros, scales = (np.repeat(part, block, axis)[:4, :6] for part in parts)
    (expected,) = run(parse(written), {})
    actual = ((steps.reshape(4, 6) - zeros) * scales).astype(np.float32)
    assert_close([actual], [expected])
    low, high = weight.limits() or (0, 0)
    assert (low, high) == (min(steps.min(), zeros.min()), max(steps.max(), zeros.max()))


@pytest.mark.parametrize(
    ("body", "form", "change"),
    [
        ("float[4, 6] f = Cast <to = 1> (q)  w = Exp (f)", "4, 1", {}),
        ("float[4, 6] f = Cast <to = 1> (q)  w = Mul (f, f)", "4, 1", {}),  # no scale
        ("float[4, 6] f = Cast <to = 1> (q)  w = Mul (f, s)", "4, 6", {}),  # one for each element
        (GROUPS + "float[4, 2, 3] d = Sub (h, f)  float[4, 2, 3] p = Mul (d, s)" + ENDS, "4, 2, 1", {}),  # the other way round
        (GROUPS + "float[4, 2, 3] d = Sub (f, s)  float[4, 2, 3] p = Mul (d, s)" + ENDS, "4, 2, 1", {}),  # zero points that are no steps
        (GROUPS + "float[4, 2, 3] p = Mul (f, s)" + ENDS, "4, 2, 1", {"shape": "12, 2"}),  # a row is less than a block
        ("w = DequantizeLinear (q, s, z)", "4, 6", {}),
    ],
)  # fmt: skip
def test_others_are_not(body: str, form: str, change: dict[str, str]) -> None:
    assert found(text(body, form, **change)) is None


def test_unsigned_differences_wrap_around() -> None:
    """They are steps as they are: 1 - 2 is 255."""
    body = "uint8[4, 6] d = Sub (q, two)  float[4, 6] f = Cast <to = 1> (d)  w = Mul (f, s)"
    steps = f"uint8[4, 6] q = {{{', '.join('1' for _ in range(24))}}}"
    weight = found(text(body, "4, 1", steps=steps))
    assert weight is not None
    assert weight.limits() == (0, 255)
    assert not weight.zeros.any()
