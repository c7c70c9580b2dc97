from __future__ import annotations

import numpy as np
import pytest

from coreai_onnx.passes.analysis.linear_quantization import (
    before_views,
    dequantized,
    dequantized_matrix,
    is_zero,
)
from coreai_onnx.passes.engine import graphs as gs


def constant(values: object, dtype: type = np.float32) -> gs.Constant:
    return gs.Constant("c", np.array(values, dtype))


def made(op: str, inputs: list[gs.Tensor], dtype: type = np.float32, **attrs: object) -> gs.Tensor:
    output = gs.Variable(f"{op}_{id(inputs)}", dtype, inputs[0].shape)
    gs.Node(op, op, dict(attrs), inputs, [output])
    return output


STEPS = constant([[1, 2, 3], [4, 5, 6]], np.int8)


@pytest.mark.parametrize(
    ("scale", "attrs", "axis"),
    [(0.5, {}, None), ([0.5], {}, None), ([1, 2, 3], {}, 1), ([1, 2], {"axis": -2}, 0)],
)
def test_scales(scale: object, attrs: dict[str, object], axis: int | None) -> None:
    found = dequantized_matrix(made("DequantizeLinear", [STEPS, constant(scale)], **attrs))
    assert found is not None
    assert (found.steps, found.zero, found.axis) == (STEPS, None, axis)


def test_what_is_not_dequantized_from_bytes_by_one_scale_or_channels() -> None:
    wide = constant([[1, 2]], np.int32)
    blocks = constant([[1.0, 2, 3]])
    for tensor in (
        STEPS,
        made("DequantizeLinear", [wide, constant(0.5)]),
        made("DequantizeLinear", [STEPS, blocks], block_size=2),
        made("Mul", [STEPS, STEPS]),
    ):
        assert dequantized(tensor) is None
    given = made("DequantizeLinear", [gs.Variable("x", np.uint8, ["n", 3]), constant(0.5)])
    assert dequantized(given) is not None
    assert dequantized_matrix(given) is None


def test_parameters_before_views_and_casts() -> None:
    scale, zero = gs.Variable("s", np.float32, []), gs.Variable("z", np.uint8, [])
    wide = made("Cast", [made("Unsqueeze", [scale])], np.float64)
    assert before_views(made("Reshape", [made("Cast", [wide])])) is scale
    assert before_views(made("Cast", [made("Cast", [zero], np.int64)], np.uint8)) is zero
    rounded = made("Cast", [scale], np.uint8)
    assert before_views(rounded) is rounded


def test_zero_points_of_zero() -> None:
    assert is_zero(None)
    assert is_zero(constant([0, 0], np.int8))
    assert not is_zero(constant([0, 1], np.int8))
    assert not is_zero(gs.Variable("z", np.uint8, []))
