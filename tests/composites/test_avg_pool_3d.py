"""Average pooling of volumes: three axes behave as one does."""

from __future__ import annotations

import torch

from coreai_onnx.composites.pooling import AVG_POOL_3D as COMPOSITE
from coreai_onnx.composites.pooling import avg_pool_2d, avg_pool_3d
from tests.support.tolerances import assert_close


def test_is_separable_where_windows_are_whole() -> None:
    x = torch.randn(2, 3, 4, 6, 8, dtype=torch.float64)
    result = avg_pool_3d(x, kernel_size=(2, 3, 2), stride=(2, 1, 2))
    planes = x.reshape(2, 12, 6, 8)
    flat = avg_pool_2d(planes, kernel_size=(3, 2), stride=(1, 2)).reshape(2, 3, 4, 4, 4)
    assert_close(result, flat.unflatten(2, (2, 2)).mean(3))


def test_computes_narrow_dtypes_in_float32() -> None:
    x = torch.randn(1, 2, 4, 4, 4).half()
    options = {"kernel_size": (3, 3, 3), "stride": (1, 1, 1), "padding": (1,) * 6}
    expected = avg_pool_3d(x.double(), **options).half()
    assert_close(avg_pool_3d(x, **options), expected)


def test_wants_three_numbers() -> None:
    attributes = {"kernel_size": (2, 2), "stride": (1, 1, 1), "padding": (0,) * 6}
    wrong = COMPOSITE.check({"input": (1, 2, 4, 4, 4)}, {**attributes, "divisor_override": None})
    assert wrong == "kernel_size has 2 numbers, 3 are needed"
