"""Positions from the sizes of dims, as onnxruntime computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from coreai_onnx.model.files.saving import to_proto
from coreai_onnx.runtime.states.in_place import recipe_of
from coreai_onnx.runtime.states.undo import computation
from tests.support.small_models import parse


def model(nodes: str, inputs: str = "int64[1, total] mask, int64[1, seq] ids") -> Any:
    return parse(f"""<ir_version: 10, opset_import: ["": 21]> agraph ({inputs}) => (int64[n] p)
    <int64[1] zero = {{0}}, int64[1] two = {{2}}, float[1] half = {{0.5}}> {{ {nodes} }}""")


LENGTHS = "t = Shape<start = 1>(mask)  s = Shape<start = 1, end = 2>(ids)"
DOUBLED = " ".join(f"d{i + 1} = Add(d{i}, d{i})" for i in range(60))


@pytest.mark.parametrize(
    ("nodes", "from_dims"),
    [
        (f"{LENGTHS}  p = Sub(t, s)", True),
        (f"{LENGTHS}  n = Neg(s)  q = Add(t, n) o = Squeeze(q, zero) p = Unsqueeze(o, zero)", True),
        (f"{LENGTHS}  n = Mul(two, s)  m = Sub(n, t)  q = Neg(m)  p = Identity(q)", True),
        (f"{LENGTHS}  p = Concat<axis = 0>(t, s)", False),
        ("p = Shape(mask)", False),
        ("p = Gather(mask, zero)", False),
        (f"d0 = Shape<start = 1>(mask)  {DOUBLED}  p = Identity(d60)", False),
        (f"{LENGTHS}  h = Cast<to = 1>(s)  g = Mul(h, half)  p = Cast<to = 7>(g)", False),
    ],
)  # fmt: skip
def test_positions_are_those_of_onnxruntime(nodes: str, from_dims: bool) -> None:
    source = model(nodes)
    arrays = {"mask": np.arange(7)[None], "ids": np.zeros((1, 3), np.int64)}
    feeds = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    compute = computation(recipe_of(source))
    assert compute is not None
    # Without feeds only dims can give the result.
    sizes = {"total": 7, "seq": 3}
    if from_dims:
        result = compute({}, sizes)["p"]
    else:
        with pytest.raises(KeyError):
            compute({}, sizes)
        result = compute(feeds, {})["p"]
    np.testing.assert_array_equal(np.ravel(result), np.ravel(expected(source, arrays)))


def expected(source: Any, arrays: dict[str, Any]) -> Any:
    session = ort.InferenceSession(to_proto(source).SerializeToString())
    names = {value.name for value in session.get_inputs()}
    return session.run(["p"], {name: array for name, array in arrays.items() if name in names})[0]
