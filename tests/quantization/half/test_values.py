"""Tests of the values of a program in 16 bits, constants among them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from coreai_onnx.quantization.half.values import Values, fault, is_fill, narrowed
from tests.support.small_models import parse
from tests.support.tolerances import assert_close

LOOP = """<ir_version: 10, opset_import: ["": 21, "m": 1]>
    agraph (float[2] x, int64 n, bool c) => (float[2] y, float[k, 2] z) {
        y, z = Loop<body = step (int64 i, bool going, float[2] s)
            => (bool on, float[2] t, float[2] v) {
            on = Identity(going)
            t = If<then_branch = a () => (float[2] f) { f = m.Twice(s) },
                   else_branch = b () => (float[2] g) { g = Neg(s) }>(going)
            v = Sqrt(x)
        }>(n, c, x)
    }
    <domain: "m", opset_import: ["": 21]> Twice (x) => (y) { o = Add(x, x)  y = Identity(o) }"""


def flagged(magnitudes: dict, dtype: ir.DataType = ir.DataType.FLOAT16) -> set[str | None]:
    values = Values(parse(LOOP), dtype, [], magnitudes, set())
    assert len(values.roots) == 5
    return {value.name for value in values.flagged}


def test_flags_pass_through_loops_branches_and_functions() -> None:
    assert flagged({}) == set()
    assert flagged({(None, "v"): 1e5}) == {"v", "z"}
    assert flagged({(None, "g"): 1e5}) >= {"g", "f", "t", "s", "y"}
    twice = ("m", "Twice", "")
    assert flagged({(twice, "y"): 1e5}) == {"x", "y", "o", "f", "g", "t", "s"}
    assert flagged({(twice, "o"): 1e5}) == {"o"}
    assert flagged({(twice, "y"): 1e5}, ir.DataType.BFLOAT16) == set()


def test_opsets_and_readers_of_bodies() -> None:
    model = parse(LOOP)
    values = Values(model, ir.DataType.FLOAT16, [], {}, set())
    (loop,) = model.graph
    (root,) = [n for n in model.graph.all_nodes() if n.op_type == "Sqrt"]
    assert values.opset(root) == 21
    assert values.reader(root.inputs[0], root) is loop
    assert values.reader(root.outputs[0], root) is root


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
