"""The check of a kernel against the reference of its composite: every fault is found and named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch

from coreai_onnx import kernel, session
from coreai_onnx.composites import Composite, Input
from coreai_onnx.delegation.user_kernels.checking import check_kernel
from coreai_onnx.delegation.user_kernels.compiling import compiled
from coreai_onnx.errors import KernelError
from tests.delegation.user_kernels.declared import GATHERED, HERE, SCALED, made, toolchain
from tests.support.tolerances import assert_close

__all__ = ["toolchain"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("toolchain")]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("attribute", r"factor=1\.25 .*\n  output\[0, 0\] is .*, the reference returns"),
        ("half", r"differs .*\n  for x float16\[2, 3\], factor=2\.0 .different sizes"),
        ("tail", r"for x float32\[2, 3\].*\n  output\[0, 0\] is 0\.0, .*6 of 6 elements differ"),
        ("shape", r"output is float32\[2, 3, 1\], the reference returns float32\[2, 3\]"),
        ("throw", r"fails\n  for x float32\[1\].*one element.\n.*\n.*one element is too few"),
        ("create", r"fails\n  for x float32\[2, 3\].*\n.*\n?.*no kernel for you"),
        ("crash", r"fails\n  for x float32\[0\].*no elements.\n  the process crashed with SIGSEGV"),
        ("exit", r"fails\n  for x float32\[0\].*no elements.\n  .* ended with exit status 0"),
        ("beyond", r"fails\n  for x float32\[2, 3\].*\n  .*SIGSEGV: it reads or writes outside of"),
        ("before", r"fails\n  for x float32\[2, 3\].*\n  .*SIGSEGV: it reads or writes outside of"),
        ("reads beyond", r"fails\n  for x float32\[2, 3\].*\n  .*SIGSEGV: it reads or writes"),
        ("input", r"fails\n  for x float32\[2, 3\].*\n  .*, writes to an input"),
        ("unwritten", r"for x float32\[7, 5\].*\n  output\[1, 2\] is .*, the reference returns"),
        ("nan", r"for x float32\[9, 33\].*special values.\n  output.* is 0\.0, .* returns nan"),
        ("infinity", r"special values.\n  output.* is -?inf, the reference returns -?inf"),
        ("large", r"for x float32\[9, 33\].*from 1e-4 to 1e4.\n  output"),
        ("many", r"many elements.\n  output.* \(1 of 1310.. elements differ"),
        ("counts", r"called again after other calls\n  output.* is 0\.0"),
        ("keeps", r"for x float32\[2, 3\].*other values of the same sizes.\n  output"),
        ("race", r"called by several threads\n  output.* is 0\.0"),
    ],
)
def test_every_fault_is_named(fault: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", fault)
    with pytest.raises(KernelError, match=said):
        kernel(SCALED, HERE / "scaled.cc")


def test_an_endless_kernel_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", "endless")
    with pytest.raises(KernelError, match="did not finish within 4 s"):
        kernel(SCALED, HERE / "scaled.cc", timeout=4)


def test_the_check_covers_every_dtype_and_edge() -> None:
    library = compiled(GATHERED, [HERE / "gathered.cc"], ())
    arguments = {"attributes": (), "tolerances": None, "timeout": 60}
    checked = check_kernel(GATHERED, library, shapes=(), **arguments)
    more = {"table": (4, 9), "rows": (11,), "bias": (9,)}
    again = check_kernel(GATHERED, library, shapes=[more], **arguments)
    assert again > checked >= 4 * 9


def test_a_reference_that_accepts_nothing_is_named() -> None:
    def broken(x: torch.Tensor, *, factor: float) -> torch.Tensor:
        raise ValueError("x is not a square")

    with pytest.raises(KernelError, match=r"no generated call of scaled .* x is not a square"):
        kernel(dataclasses.replace(SCALED, reference=broken), HERE / "scaled.cc")


PRODUCT = """
#include <algorithm>
#include <cmath>
#include "kit/kernel.h"
template <class T>
struct SoftmaxOfProduct {
  explicit SoftmaxOfProduct(const coreai::Attributes&) {}
  void Compute(const coreai::Context& context) const {
    using Wide = coreai::Wide<T>;
    const auto x = context.Input<T>(0), weight = context.Input<T>(1);
    const std::int64_t inner = weight.dim(0), columns = weight.dim(1);
    const std::int64_t rows = inner == 0 ? x.dim(0) : x.size / inner;
    T* product = context.Output<T>(0, {rows, columns});
    T* softmax = context.Output<T>(1, {rows, columns});
    for (std::int64_t row = 0; row < rows; ++row) {
      std::vector<Wide> sums(columns);
      for (std::int64_t k = inner; k-- > 0;) {  // in another order than the reference
        for (std::int64_t c = 0; c < columns; ++c) {
          sums[c] += static_cast<Wide>(x[row * inner + k]) * weight[k * columns + c];
        }
      }
      Wide most = -INFINITY, total = 0;
      for (const Wide sum : sums) most = sum > most || std::isnan(sum) ? sum : most;
      for (const Wide sum : sums) total += std::exp(sum - most);
      for (std::int64_t c = 0; c < columns; ++c) {
        product[row * columns + c] = static_cast<T>(sums[c]);
        softmax[row * columns + c] = static_cast<T>(std::exp(sums[c] - most) / total);
      }
    }
  }
};
COREAI_KERNEL(SoftmaxOfProduct)
"""


def test_sums_in_another_order_are_accepted() -> None:
    def reference(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        product = x.to(wide) @ weight.to(wide)
        return product.to(x.dtype), product.softmax(-1).to(x.dtype)

    declared = Composite(
        "softmax_of_product",
        (Input("x", dims="M K"), Input("weight", dims="K N")),
        ("product", "softmax"),
        reference,
        "softmax(x @ weight)",
        output_dims=("M N", "M N"),
    )
    loose = {"float32": (1e-4, 1e-3)}
    assert kernel(declared, PRODUCT, tolerances=loose).checked >= 4 * 9
    finite = "static_cast<T>(std::isfinite(sums[c]) ? sums[c] : 0)"
    wrong = PRODUCT.replace("static_cast<T>(sums[c])", finite)
    with pytest.raises(KernelError, match=r"special values.\n  product"):
        kernel(declared, wrong, tolerances=loose)


def test_tolerances_can_be_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    nearly = dataclasses.replace(SCALED, reference=lambda x, factor: x * (factor * 1.001))
    with pytest.raises(KernelError, match=r"1\.3e-06 relative"):
        kernel(nearly, HERE / "scaled.cc")
    wide = dict.fromkeys(SCALED.dtypes, (0.02, 0.0))
    assert kernel(nearly, HERE / "scaled.cc", tolerances=wide).checked > 0


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("factor", [1.0, 1 / 3, 1e-4, 300.0])
def test_narrow_floats_are_read_and_rounded_exactly(dtype: type, factor: float) -> None:
    """All 65536 numbers, against numpy's conversions."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.from_numpy(x.dtype)))
    value.shape = ir.Shape(["n"])
    node = ir.node("scaled", [value], {"factor": factor}, domain="ai.coreai.user", num_outputs=1)
    node.outputs[0].name, node.outputs[0].type = "y", value.type
    imports = {"": 23, "ai.coreai.user": 1}
    graph = ir.Graph([value], node.outputs, nodes=[node], opset_imports=imports, name="main")
    opened = session(ir.Model(graph, ir_version=10), custom_ops=[made(SCALED)])
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = (x.astype(np.float32) * np.float32(factor)).astype(dtype)
    got = opened.run(x)[0]
    assert_close(np.isnan(got), np.isnan(wanted))
    number = ~np.isnan(wanted)
    assert_close(got[number].view(np.uint16), wanted[number].view(np.uint16))


def test_a_library_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"gone\.so: no such custom op library"):
        check_kernel(
            SCALED, tmp_path / "gone.so", attributes=(), shapes=(), tolerances=None, timeout=60
        )
