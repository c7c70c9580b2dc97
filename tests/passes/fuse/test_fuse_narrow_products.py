"""Products in bfloat16 and float16 become gather_mm, in the body and in the kernel as torch computes them."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import get_args

import pytest
import torch

import coreai_onnx
from coreai_onnx.passes import Target
from coreai_onnx.passes.cleanup.remove_noops import remove_noop_casts
from coreai_onnx.passes.fuse.fuse_narrow_products import fuse_narrow_products
from tests.lower.checking import op_types, open_model, run_session
from tests.passes.rewriting import fuses, leaves, run_passes
from tests.support.tolerances import assert_close

TEXT = (
    "main (bfloat16[n, 2] x, bfloat16[2, 3] v, float[3] b) => ({y}) "
    "<bfloat16[2, 3] w = {{1, 2, 3, 4, 5, 6}}> {{ {body} }}"
)
WIDE = "float[n, 2] a = Cast <to = 1> (x) float[2, 3] c = Cast <to = 1> (w)"
ROUNDED = "bfloat16[n, 3] y = Cast <to = 16> (p)"
CALL = (
    "ai.coreai.gather_mm<num_batch_axes: int = 0, transpose_rhs: int = 0, version: int = 1> (x, w)"
)


def text(body: str, y: str = "bfloat16[n, 3] y") -> str:
    return TEXT.format(body=body, y=y)


def test_a_product_is_one_node() -> None:
    before = text(f"{WIDE} float[n, 3] p = MatMul (a, c) {ROUNDED}")
    model = fuses(before, fuse_narrow_products, 1, text(f"bfloat16[n, 3] p = {CALL} {ROUNDED}"))
    assert run_passes(model, [remove_noop_casts]).total == 1
    assert op_types(model) == ["gather_mm"]


def test_the_bias_of_a_gemm_is_added_in_float32() -> None:
    fuses(
        text(f"{WIDE} float[n, 3] p = Gemm (a, c, b) {ROUNDED}"),
        fuse_narrow_products,
        1,
        text(
            f"bfloat16[n, 3] p_gather_mm = {CALL} "
            f"float[n, 3] p_cast = Cast <to = 1> (p_gather_mm) "
            f"float[n, 3] p = Add (p_cast, b) {ROUNDED}"
        ),
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (f"{WIDE} float[n, 3] y = MatMul (a, c)", "the product is read in float32"),
        (
            f"{WIDE} float[n, 3] p = MatMul (a, c) {ROUNDED.replace('y', 'q')} y = Neg (p)",
            "the product is read in float32",
        ),
        (
            f"{WIDE} float[n, 3] p = Gemm <alpha = 0.5> (a, c, b) bfloat16[n, 3] q = Cast <to = 16> (p) y = Cast <to = 1> (q)",
            "the product is scaled or transposed",
        ),
        (f"{WIDE.replace('(w)', '(v)')} y = MatMul (a, c)", None),  # no constant
        ("float[n, 2] a = Cast <to = 1> (x) float[2, 3] c = Expand (b, s) y = MatMul (a, c)", None),
    ],
)
def test_others_stay(body: str, reason: str | None) -> None:
    declared = body if "s)" not in body else f"s = Constant <value = int64[2] {{2, 3}}> () {body}"
    leaves(text(declared, y="float[n, 3] y"), fuse_narrow_products, reason)


@pytest.mark.parametrize(
    ("product", "after"),
    [
        ("y = MatMul (x, w)", f"y = {CALL}"),
        ("y = Gemm (x, w, h)", f"float16[n, 3] y_gather_mm = {CALL} y = Add (y_gather_mm, h)"),
    ],
)
def test_a_product_of_float16_needs_no_casts(product: str, after: str) -> None:
    before, wanted = (text(b).replace("bfloat16", "float16") for b in (product, after))
    narrow = [one.replace("float[3] b", "float16[3] h") for one in (before, wanted)]
    fuses(narrow[0], fuse_narrow_products, 1, narrow[1])


def test_a_product_of_widened_float16_stays() -> None:
    wide = f"{WIDE} float[n, 3] p = MatMul (a, c) {ROUNDED}".replace("to = 16", "to = 10")
    leaves(text(wide).replace("bfloat16", "float16"), fuse_narrow_products)


class Tied(torch.nn.Module):
    """An embedding whose weight is that of the last product too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(24, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = self.embedding(torch.tensor([3]))
        return torch.nn.functional.linear(x + row, self.embedding.weight)


@pytest.mark.parametrize(
    ("module", "shape", "count"),
    [
        (torch.nn.Linear(40, 24), (2, 37, 40), 1),
        (torch.nn.Linear(40, 24), (37, 40), 1),  # a Gemm
        (torch.nn.Linear(40, 24), (1, 40), 1),
        (torch.nn.Linear(33, 17, bias=False), (3, 2, 1, 33), 1),
        (torch.nn.Linear(40, 24), (0, 40), 1),
        (torch.nn.Sequential(torch.nn.Linear(40, 24), torch.nn.Linear(24, 8)), (5, 40), 2),
        (Tied(), (2, 5, 40), 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_body_and_kernel_compute_what_torch_does(
    dtype: torch.dtype, module: torch.nn.Module, shape: tuple[int, ...], count: int, kernels: Path
) -> None:
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data.abs_()  # no sum cancels: a bias is added after a rounding, not before it
    module, x = deepcopy(module).to(dtype).eval(), torch.rand(shape).to(dtype)
    program = coreai_onnx.convert(module, (x,)).optimize(target="kernels")
    model = program.model
    types = [op.partition(".")[0] for op in op_types(model)]
    assert types.count("gather_mm") == count
    assert not {"MatMul", "Gemm"} & {*types}
    with torch.no_grad():
        expected = [module(x)]
    assert_close(run_session(open_model(model), [x]), expected)
    model.functions.clear()
    assert_close(run_session(open_model(model, library=kernels), [x]), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_only_the_kernels_target_has_it(dtype: torch.dtype) -> None:
    module, x = torch.nn.Linear(64, 40).to(dtype), torch.ones(3, 64).to(dtype)
    for target in get_args(Target):
        program = coreai_onnx.convert(module, (x,)).optimize(target=target)
        assert ("gather_mm.transposed" in op_types(program.model)) == (target == "kernels")
