"""Gathered products against products written out, and against the experts of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from coreai_onnx import ExternalizeSpec, convert
from coreai_onnx.composites import GatherMM
from coreai_onnx.composites.products import gather_mm, take, taken_shape
from coreai_onnx.lower.nodes.composite_checks import CompositeCallError
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def test_every_token_has_its_matrix() -> None:
    x, w, expert = torch.randn(7, 1, 8), torch.randn(4, 8, 6), torch.randint(0, 4, (7,))
    expected = torch.stack([x[t] @ w[expert[t]] for t in range(7)])
    assert_close(gather_mm(x, w, None, expert), expected)
    transposed = w.transpose(1, 2).contiguous()
    assert_close(gather_mm(x, transposed, None, expert, transpose_rhs=1), expected)


def test_every_token_has_several_matrices() -> None:
    x, w, expert = torch.randn(5, 1, 1, 8), torch.randn(4, 8, 6), torch.randint(0, 4, (5, 2))
    actual = gather_mm(x, w, None, expert)
    assert actual.shape == (5, 2, 1, 6)
    assert_close(actual[3, 1], x[3, 0] @ w[expert[3, 1]])


def test_every_batch_entry_gets_all_indices() -> None:
    gate_up, expert = torch.randn(2, 4, 8, 6), torch.randint(0, 4, (5, 3))
    x = torch.randn(5, 1, 1, 8)
    actual = gather_mm(x, gate_up, None, expert, num_batch_axes=1)
    assert actual.shape == (2, 5, 3, 1, 6)
    assert_close(actual[1, 4, 2], x[4, 0] @ gate_up[1, expert[4, 2]])


def test_both_sides_choose() -> None:
    x, w = torch.randn(4, 2, 8), torch.randn(3, 8, 6)
    left, right = torch.tensor([3, 3, 0]), torch.tensor([2, 0, 1])
    assert_close(gather_mm(x, w, left, right), torch.stack([x[3] @ w[2], x[3] @ w[0], x[0] @ w[1]]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_keeps_the_dtype_and_adds_up_in_a_wide_one(dtype: torch.dtype) -> None:
    x, w = torch.randn(3, 1, 64).to(dtype), torch.randn(2, 64, 5).to(dtype)
    actual = gather_mm(x, w, None, torch.tensor([1, 0, 1]))
    assert actual.dtype == dtype
    expected = (x.double() @ w.double()[[1, 0, 1]]).to(dtype)
    assert_close(actual, expected)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32]
)
def test_indices_of_any_integer_type(dtype: torch.dtype) -> None:
    x, i = torch.randn(4, 3, 2), torch.tensor([[3, 0], [1, 1]])
    assert_close(take(x, i.to(dtype), 0), x[i])
    assert_close(take(x, torch.tensor(2, dtype=dtype), 1), x[:, 2])
    assert take(x, None, 0) is x
    assert taken_shape(x, i, 1) == (4, 2, 2, 2)


def test_an_index_outside_is_an_error() -> None:
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        gather_mm(torch.randn(1, 1, 8), torch.randn(4, 8, 6), None, torch.tensor([4]))


def test_mixtrals_experts() -> None:
    config = MixtralConfig(
        hidden_size=8, intermediate_size=6, num_local_experts=4, experts_implementation="eager"
    )
    experts = MixtralExperts(config)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter)
    x, chosen, weights = torch.randn(5, 8), torch.randint(0, 4, (5, 2)), torch.rand(5, 2)
    with torch.no_grad():
        gate_up = gather_mm(x[:, None, None], experts.gate_up_proj, None, chosen, transpose_rhs=1)
        gate, up = gate_up.chunk(2, dim=-1)
        hidden = torch.nn.functional.silu(gate) * up
        out = gather_mm(hidden, experts.down_proj, None, chosen, transpose_rhs=1)
        actual = (out[:, :, 0] * weights[..., None]).sum(1)
        assert_close(actual, experts(x, chosen, weights))


@pytest.mark.parametrize(
    ("shapes", "attributes", "message"),
    [
        (((3, 1, 7), (4, 8, 6), None, (3,)), {}, "lhs has 7 columns, the matrices of rhs want 8"),
        (((3, 1, 8), (4, 8, 6), None, (3,)), {"transpose_rhs": 1}, "of rhs want 6"),
        (((3, 1, 8), (4, 8, 6), None, (3,)), {"num_batch_axes": 3}, "is 3, rhs has rank 3"),
        (((8,), (8, 6)), {}, "lhs must have rank 2 or higher once its indices are taken"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(
    shapes: tuple[tuple[int, ...] | None, ...], attributes: dict[str, int], message: str
) -> None:
    with pytest.raises(CompositeCallError, match=message):
        Case("gather_mm", shapes, attributes, {3: torch.int64}).model(torch.float32, dynamic=False)


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
    with pytest.raises(ValueError, match="lhs has 7 columns, the matrices of rhs want 8"):
        product(x[..., :7], w, rhs_indices=index)
    with pytest.raises(ValueError, match=r"rhs_indices must be integers, got torch\.float32"):
        product(x, w, rhs_indices=index.float())
    with pytest.raises(
        ValueError, match="lhs must have rank 2 or higher once its indices are taken"
    ):
        product(x[0, 0], w)
    with pytest.raises(ValueError, match="num_batch_axes is 3, rhs has rank 3"):
        GatherMM(3)(x, w, rhs_indices=index)


@pytest.mark.parametrize("index", [[0, 4], [-1, 2]])
def test_says_which_index_is_outside(index: list[int]) -> None:
    product, x, w = GatherMM(), torch.randn(2, 1, 8), torch.randn(4, 8, 6)
    with pytest.raises(
        ValueError, match=f"from {index[0]} to {index[1]}, axis 0 of rhs has size 4"
    ):
        product(x, w, rhs_indices=torch.tensor(index))
