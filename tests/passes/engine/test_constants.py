"""The data of constants is neither copied nor computed before it is read."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from coreai_onnx.passes.engine.constants import (
    constant_from_tensor,
    digest,
    fingerprint,
    holds_source,
    is_lazy,
    joined_name,
    lazy_constant,
    nbytes,
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


def test_nothing_is_computed_before_it_is_read() -> None:
    calls = []

    def twice(x: np.ndarray) -> np.ndarray:
        calls.append(x)
        return x * 2

    source = gs.Constant("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    constant = lazy_constant("w2", twice, [source], [2, 3])
    assert (is_lazy(constant), is_lazy(source), nbytes(constant)) == (True, False, 24)
    assert (list(constant.shape), constant.dtype, constant.name) == ([2, 3], np.float32, "w2")
    assert calls == []
    tensor = tensor_from_constant(constant)
    np.testing.assert_array_equal(tensor.numpy(), [[0, 2, 4], [6, 8, 10]])
    tensor.numpy()
    assert len(calls) == 2  # and nothing is kept


def test_what_names_share_is_written_once() -> None:
    assert joined_name(["a.q.weight", "a.k.weight", "a.v.weight"]) == "a.q+k+v.weight"
    assert joined_name(["q", "k"]) == "q+k"
    assert joined_name(["a.q"]) == "a.q"
    assert joined_name(["a.0.w", "a.1.b"]) == "a.0.w+1.b"


def constant(values) -> gs.Constant:
    return gs.Constant("c", np.asarray(values))


def test_equal_bytes_have_equal_digests() -> None:
    values = np.arange(100_000, dtype=np.float32)
    assert fingerprint(constant(values)) == fingerprint(constant(values.copy()))
    assert digest(constant(values)) == digest(constant(values.copy()))


def test_one_bit_makes_a_difference() -> None:
    values = np.zeros(2_000_000, np.float32)
    other = values.copy()
    other[1_234_567] = -0.0
    assert digest(constant(values)) != digest(constant(other))


def test_dtype_and_shape_make_a_difference() -> None:
    zeros = np.zeros(4, np.int32)
    forms = [zeros, zeros.view(np.float32), zeros.reshape(2, 2), zeros.astype(ml_dtypes.bfloat16)]
    assert len({fingerprint(constant(form)) for form in forms}) == 4


def test_scalars_empties_and_strings() -> None:
    assert digest(constant(np.float32(1))) == digest(constant(np.ones((), np.float32)))
    assert digest(constant(np.zeros((0, 3)))) == digest(constant(np.zeros((0, 3))))
    assert digest(constant(np.array(["a", "b"], object))) != digest(
        constant(np.array(["ab"], object))
    )


def test_nothing_is_copied() -> None:
    big = constant(np.zeros(16 << 20, np.uint8))
    tracemalloc.start()
    digest(big)
    fingerprint(big)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
