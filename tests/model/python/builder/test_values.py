"""Values of a call: every dtype, as torch tensors and as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from coreai_onnx.model.python.builder.errors import CallError
from coreai_onnx.model.python.builder.values import ValueInfo, checked, from_ort, to_ort, to_torch

F32 = ir.DataType.FLOAT
KINDS = [kind for kind in ir.DataType if kind.name not in ("UNDEFINED", "STRING")]
TORCH = {kind: dtype for kind in KINDS if isinstance(dtype := getattr(torch, kind.numpy().name, 0),
         torch.dtype) and kind.bitwidth >= 8}  # fmt: skip


def slot(kind: ir.DataType, *dims: int | str | None, is_complex: bool = False) -> ValueInfo:
    return ValueInfo("x", kind, dims, is_complex)


def run_through(value: Any, wanted: ValueInfo) -> Any:
    array = checked(value, wanted, {}, {})
    return from_ort(to_ort(onnxruntime, array, wanted), wanted)


@pytest.mark.parametrize("kind", TORCH, ids=lambda kind: kind.name)
def test_every_dtype_of_torch_comes_back(kind: ir.DataType) -> None:
    if kind in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return
    tensor = torch.tensor([1.0, 2.0, 0.5, 4.0]).to(TORCH[kind])
    found = to_torch(run_through(tensor, slot(kind, 4)), slot(kind, 4).element)
    assert found.dtype == tensor.dtype
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(F32, torch.complex64), (ir.DataType.DOUBLE, torch.complex128),
     (ir.DataType.FLOAT16, torch.complex32)],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_complex_tensors_are_pairs(kind: ir.DataType, dtype: torch.dtype) -> None:
    wanted = slot(kind, 2, is_complex=True)
    tensor = torch.tensor([1 + 2j, -3j]).to(dtype).conj()
    found = to_torch(run_through(tensor, wanted), wanted.element)
    assert found.dtype == dtype
    assert found.tolist() == tensor.tolist()
    assert str(wanted) == f"{str(dtype).removeprefix('torch.')}[2]"


def test_tensors_that_require_gradients_views_and_texts() -> None:
    tensor = torch.arange(6.0, requires_grad=True).reshape(2, 3).T
    np.testing.assert_array_equal(run_through(tensor, slot(F32, 3, 2)), tensor.detach().numpy())
    texts = np.array(["a", "bc"], dtype=object)
    assert checked(texts, slot(ir.DataType.STRING, 2), {}, {}) is texts
    assert to_torch(texts, "string") is texts


@pytest.mark.parametrize(
    ("value", "kind"),
    [(3, F32), (2.5, ir.DataType.BFLOAT16), (True, ir.DataType.BOOL), (7, ir.DataType.UINT8)],
)
def test_numbers_take_the_type_of_the_input(value: Any, kind: ir.DataType) -> None:
    assert run_through(value, slot(kind)) == value


@pytest.mark.parametrize(
    ("value", "wanted", "message"),
    [(torch.ones(2).double(), slot(F32, 2),
      r"x is float64, but the model takes float32\[2\]: convert it to float32"),
     (torch.ones(2) * 1j, slot(F32, 2), "x is complex64, but"),
     (np.ones(3, np.float32), slot(F32, 2), r"x has shape \[3\], but the model takes float32\[2\]"),
     (np.ones((2, 1), np.float32), slot(F32, 2), r"x has shape \[2, 1\], but"),
     (np.ones(9, np.float32), slot(F32, "n"), r"shape \[9\], .*float32\[n\] with n at most 8"),
     (np.ones(1, np.float32), slot(F32, "n"), "with n at least 2"),
     (np.ones(3, np.float32), slot(F32, "m"), "with m = 4, as in another argument"),
     (1.5, slot(ir.DataType.INT64), "x is float 1.5, but the model takes int64"),
     (300, slot(ir.DataType.UINT8), "x is int 300, but"),
     ("text", slot(F32), "x is a str, but .*: pass a torch tensor, an array or a number"),
     (None, slot(F32), "x is None, but the model takes float32.*: pass a torch tensor, an array"),
     (b"x", slot(F32), "x is a bytes"), ([None], slot(F32), "x is a list"),
     (torch.ones(2, device="meta"), slot(F32, 2), "x has no data"),
     (torch.ones(2).to_sparse(), slot(F32, 2), "x has the layout torch.sparse_coo")],
)  # fmt: skip
def test_others_are_refused(value: Any, wanted: ValueInfo, message: str) -> None:
    with pytest.raises(CallError, match=message):
        checked(value, wanted, {"m": 4}, {"n": {"min": 2, "max": 8}})


def test_unknown_sizes_are_not_checked() -> None:
    for dims in ((None,), ("2*n",), ("n",)):
        assert checked(np.ones(3, np.float32), slot(F32, *dims), {}, {}).shape == (3,)
    assert str(ValueInfo("x", F32, None, is_complex=False)) == "float32"
    assert str(slot(F32, None, "n")) == "float32[?, n]"
