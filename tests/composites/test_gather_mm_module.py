"""GatherMM: coreai-torch's constructor and forward, one op in an export, errors that say why."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx import ExternalizeSpec, convert
from coreai_onnx.composites import GatherMM
from coreai_onnx.composites.products import gather_mm
from tests.support.tolerances import assert_close


class Experts(torch.nn.Module):
    """Tokens times the matrix of their expert."""

    def __init__(self, *, transposed: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn((4, 6, 8) if transposed else (4, 8, 6)))
        self.product = GatherMM(transpose_rhs=transposed)

    def forward(self, x: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        return self.product(x[:, None, None], self.weight, rhs_indices=expert)


def tokens(count: int, dtype: torch.dtype = torch.int64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 8), torch.randint(0, 4, (count, 2)).to(dtype)


def test_keeps_its_attributes() -> None:
    product = GatherMM(num_batch_axes=1)
    assert (product.num_batch_axes, product.transpose_rhs) == (1, False)
    x, w, i = torch.randn(5, 1, 1, 8), torch.randn(2, 4, 8, 6), torch.randint(0, 4, (5, 2))
    assert_close(product(x, w, rhs_indices=i), gather_mm(x, w, None, i, num_batch_axes=1))


def test_gradients_reach_the_matrices() -> None:
    experts = Experts()
    experts(*tokens(3)).sum().backward()
    assert experts.weight.grad is not None


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_is_the_composite_marked_or_not(marked: bool, transposed: bool) -> None:
    experts = Experts(transposed=transposed)
    attributes = ["num_batch_axes", "transpose_rhs"]
    specs = [ExternalizeSpec(GatherMM, "gather_mm", attributes)] if marked else None
    count = torch.export.Dim("count")
    program = convert(
        experts,
        tokens(3),
        dynamic_shapes=({0: count}, {0: count}),
        externalize_modules=specs,
    )
    (node,) = (n for n in program.model.graph if n.domain == "ai.coreai")
    assert node.op_type == "gather_mm"
    assert node.attributes["transpose_rhs"].as_int() == int(transposed)
    assert node.inputs[1].name == "weight"
    for size in (3, 1, 50):
        given = tokens(size)
        (actual,) = program.run(*given, kernels=False)
        assert_close(actual, experts(*given).detach())


@pytest.mark.parametrize("marked", [True, False])
def test_indices_of_other_integer_types_are_cast(marked: bool) -> None:
    experts, given = Experts(), tokens(3, torch.uint8)
    specs = [ExternalizeSpec(GatherMM, "gather_mm")] if marked else None
    (actual,) = convert(experts, given, externalize_modules=specs).run(*given, kernels=False)
    assert_close(actual, experts(*given).detach())


def test_says_what_does_not_fit() -> None:
    product, x, w = GatherMM(), torch.randn(3, 1, 8), torch.randn(4, 8, 6)
    index = torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match=r"lhs \(3, 1, 7\) has 7 columns, rhs \(3, 8, 6\) wants 8"):
        product(x[..., :7], w, rhs_indices=index)
    with pytest.raises(ValueError, match=r"rhs_indices must be integers, are torch\.float32"):
        product(x, w, rhs_indices=index.float())
    with pytest.raises(ValueError, match=r"lhs must have rank 2 at least .* has \(8,\)"):
        product(x[0, 0], w)
    with pytest.raises(ValueError, match=r"rhs \(4, 8, 6\) has no axis 3"):
        GatherMM(3)(x, w, rhs_indices=index)


@pytest.mark.parametrize("index", [[0, 4], [-1, 2]])
def test_says_which_index_is_outside(index: list[int]) -> None:
    product, x, w = GatherMM(), torch.randn(2, 1, 8), torch.randn(4, 8, 6)
    with pytest.raises(
        ValueError, match=f"from {index[0]} to {index[1]}, axis 0 of rhs has size 4"
    ):
        product(x, w, rhs_indices=torch.tensor(index))
