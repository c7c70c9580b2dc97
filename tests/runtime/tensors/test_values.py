"""Values into onnxruntime and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from coreai_onnx.errors import InputError, SessionError
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.values import described, dtype_of, from_ort, to_numpy, to_ort
from tests.support.small_models import parse
from tests.support.tolerances import as_numpy, assert_close

SHAPES = [(), (0, 3), (2, 3)]
TORCH_DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32,
    torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def info(dtype: str, rank: int = 2) -> TensorInfo:
    return TensorInfo("x", dtype, ("n",) * rank)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_tensors_there_and_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 8).to(dtype)
    array = to_numpy(tensor, info("float32"))
    assert_close(array, tensor)
    of_this = info(array.dtype.name)
    assert_close(from_ort(to_ort(array, of_this), of_this), tensor)


COMPLEX = [torch.complex32, torch.complex64, torch.complex128]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_complex_tensors_are_pairs_there_and_back(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.view_as_complex(torch.randn(*shape, 2).to(dtype.to_real()))
    of_this = info(str(dtype).removeprefix("torch."), len(shape))
    array = to_numpy(tensor, of_this)
    assert array.dtype.name == of_this.numpy_dtype
    assert described(array, of_this) == (of_this.dtype, shape)
    value = to_ort(array, of_this)
    assert value.shape() == [*shape, 2]
    assert_close(value.numpy(), torch.view_as_real(tensor))
    assert described(value, of_this) == (of_this.dtype, shape)
    back = from_ort(value, of_this)
    assert back.flags.c_contiguous
    assert_close(back, array)


@pytest.mark.parametrize(
    "view",
    [lambda z: z.T, lambda z: z[::2, 1:], lambda z: z.conj().T, lambda z: z[0, 0], lambda z: z.H],
)
def test_complex_views(view: Callable[[Any], Any]) -> None:
    tensor = view(torch.randn(4, 6, dtype=torch.complex64))
    of_this = info("complex64", tensor.dim())
    for value in (tensor, tensor.resolve_conj().numpy(), tensor.resolve_conj().numpy()[...]):
        array = to_numpy(value, of_this)
        assert_close(from_ort(to_ort(array, of_this), of_this), tensor.resolve_conj())


def test_complex_arrays_of_any_byte_order_and_the_sign_of_negated_parts() -> None:
    of_this = info("complex64")
    array = (np.arange(4).reshape(2, 2) * (1 + 2j)).astype(np.complex64)
    swapped = to_numpy(array.astype(">c8").T, of_this)
    assert_close(from_ort(to_ort(swapped, of_this), of_this), array.T)
    negated = torch.from_numpy(array).conj().imag  # a view with the negative bit
    assert_close(to_numpy(negated, info("float32")), -array.imag)


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, lambda x: x.to("meta")])
def test_tensors_without_an_array(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(InputError, match=r"input 'x': the tensor is (a meta|of layout)"):
        to_numpy(make(torch.ones(2, 2)), info("float32"))


def test_strided_negated_and_trained_tensors() -> None:
    tensor = torch.rand(4, 6, requires_grad=True)
    assert_close(to_numpy(tensor.T[::2], info("float32")), tensor.detach().T[::2])
    conjugated = torch.rand(3, dtype=torch.complex64).conj()
    assert_close(to_numpy(conjugated, info("complex64")), conjugated.resolve_conj())


def test_numpy_arrays_of_any_layout() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.shares_memory(to_numpy(array, info("float32")), array)
    for other in (array.T, array[:, ::2], array.astype(">f4"), np.asfortranarray(array)):
        converted = to_numpy(other, info("float32"))
        assert converted.flags.c_contiguous
        assert converted.dtype == np.float32
        assert np.array_equal(converted, other)
    assert to_numpy(np.float16(2), info("float16", 0)).shape == ()
    bf16 = np.ones((2, 2), ml_dtypes.bfloat16)
    of_this = info("bfloat16")
    assert_close(from_ort(to_ort(to_numpy(bf16.T, of_this), of_this), of_this), bf16)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, "bool"),
        (3, "int64"),
        (3, "uint8"),
        (3, "float32"),
        (0.5, "bfloat16"),
        (0.5, "float64"),
        (True, "float32"),
        (1 - 2j, "complex64"),
        (2, "complex128"),
        (True, "complex64"),
    ],
)
def test_python_numbers_take_the_dtype_of_the_input(value: float, dtype: str) -> None:
    array = to_numpy(value, info(dtype, 0))
    assert_close(array, np.asarray(value).astype(dtype))
    assert array.shape == ()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(0.5, "int64"), (300, "uint8"), (-1, "uint8"), (2, "bool"), (2j, "float32")],
)
def test_python_numbers_that_do_not_fit(value: float, dtype: str) -> None:
    with pytest.raises(InputError, match=rf"input 'x': the \w+ {value} does not fit(.|\n)*{dtype}"):
        to_numpy(value, info(dtype, 0))


@pytest.mark.parametrize("value", ["text", [1, 2], None, {"x": 1}])
def test_what_is_no_tensor(value: object) -> None:
    with pytest.raises(
        InputError, match=r"input 'x': \w+ is not a tensor\n  expected  float32\[n, n\]"
    ):
        to_numpy(value, info("float32"))


def test_a_dictionary_gets_a_hint() -> None:
    with pytest.raises(InputError, match=r"run\(\*\*inputs\)"):
        to_numpy({}, info("float32"))


def test_the_copy_out_owns_its_memory() -> None:
    value = to_ort(np.ones(3, ml_dtypes.bfloat16), info("bfloat16", 1))
    array = from_ort(value, info("bfloat16", 1))
    del value
    assert array.flags.owndata or array.base is not None
    assert_close(array, as_numpy(torch.ones(3, dtype=torch.bfloat16)))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tensor(float)", "float32"),
        ("tensor(bfloat16)", "bfloat16"),
        ("tensor(int64)", "int64"),
        ("seq(tensor(float))", "seq(tensor(float))"),
    ],
)
def test_type_texts_of_onnxruntime(text: str, name: str) -> None:
    assert dtype_of(text) == name


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_value_on_a_numpy_array_is_copied(dtype: str) -> None:
    info = TensorInfo("x", dtype, (4,))
    array = np.arange(4).astype(dtype)
    value = to_ort(array, info)
    back = from_ort(value, info)
    array += 1
    assert back.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float4_e2m1fn"])
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (2, 4)], ids=str)
def test_dtypes_that_share_bytes(dtype: str, shape: tuple[int, ...]) -> None:
    array = (np.arange(np.prod(shape)) % 4).reshape(shape).astype(getattr(ml_dtypes, dtype))
    of_this = info(dtype, len(shape))
    value = to_ort(array, of_this)
    assert value.tensor_size_in_bytes() == -(-array.size // 2)
    back = from_ort(value, of_this)
    assert (back.shape, back.dtype) == (shape, array.dtype)
    np.testing.assert_array_equal(back.astype(np.float32), array.astype(np.float32))


def test_sequences_and_strings() -> None:
    with pytest.raises(InputError, match=r"'x': list is not a tensor(.|\n)*session\.ort\.run"):
        to_numpy(["a"], info("string"))
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
    agraph (float[n] x) => (seq(float[n]) y) { y = SequenceConstruct(x, x) }""")
    with pytest.raises(SessionError, match=r"output 'y' is seq\(tensor\(float\)\), not a tensor"):
        Session(model, kernels=False).run(np.ones(2, np.float32))
