from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from coreai_onnx.passes.engine.weight import (
    constant_from_tensor,
    holds_source,
    tensor_from_constant,
)


def test_the_tensor_object_comes_back_read_or_unread() -> None:
    source = ir.tensor(np.arange(4, dtype=np.float32), name="w")
    constant = constant_from_tensor("w", source)
    assert tensor_from_constant(constant) is source
    assert constant.values.tolist() == [0, 1, 2, 3]
    assert tensor_from_constant(constant) is source
    assert holds_source(constant)


def test_reading_is_a_view_that_cannot_be_written() -> None:
    array = np.arange(4, dtype=np.float32)
    values = constant_from_tensor("w", ir.tensor(array)).values
    assert np.shares_memory(values, array)
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1
    assert array.flags.writeable


def test_new_values_make_a_new_tensor() -> None:
    constant = constant_from_tensor("w", ir.tensor(np.zeros(2, np.float32)))
    constant.values = np.array([1, 2], ml_dtypes.bfloat16)
    tensor = tensor_from_constant(constant)
    assert not holds_source(constant)
    assert tensor.dtype == ir.DataType.BFLOAT16
    assert tensor.numpy().astype(float).tolist() == [1, 2]


def test_facts_without_reading() -> None:
    def fail() -> ir.Tensor:
        raise AssertionError("read")

    lazy = ir.LazyTensor(fail, dtype=ir.DataType.BFLOAT16, shape=ir.Shape((2, 3)), name="w")
    constant = constant_from_tensor("w", lazy)
    assert (list(constant.shape), constant.dtype) == ([2, 3], ml_dtypes.bfloat16)
    assert constant._values.nbytes == 12


def test_a_proto_for_graph_surgeon() -> None:
    constant = constant_from_tensor("w", ir.tensor(np.ones(2, np.float32), name="w"))
    assert isinstance(constant._values.tensor, onnx.TensorProto)
