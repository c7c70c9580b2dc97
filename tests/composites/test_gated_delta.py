"""The gated delta rule against the loops of transformers, for lengths, head groups and dtypes."""

from __future__ import annotations

import pytest
import torch
import transformers.models.qwen3_next.modeling_qwen3_next as qwen3_next

from coreai_onnx import ExternalizeSpec, convert
from coreai_onnx.composites import GatedDeltaUpdate
from coreai_onnx.composites.gated_delta import gated_delta_update
from coreai_onnx.lower.nodes.composite_checks import CompositeCallError
from tests.support.composite_calls import Case
from tests.support.tolerances import assert_close

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def tensors(length: int, *, heads: int = 2, groups: int = 2) -> list[torch.Tensor]:
    values = heads * groups
    return [
        torch.randn(2, heads, length, 8),
        torch.randn(2, heads, length, 8),
        torch.randn(2, values, length, 6),
        -torch.rand(2, values, length),
        torch.rand(2, values, length),
    ]


def by_transformers(
    name: str, given: list[torch.Tensor], state: torch.Tensor | None, *, norm: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    function = getattr(qwen3_next, f"torch_{name}_gated_delta_rule")
    result: tuple[torch.Tensor, torch.Tensor] = function(
        *(x.transpose(1, 2) for x in given),
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=norm,
    )
    return result


@pytest.mark.parametrize("name", ["chunk", "recurrent"])
@pytest.mark.parametrize(("heads", "groups"), [(3, 1), (2, 2), (1, 4)])
def test_gives_what_the_loops_of_transformers_give(name: str, heads: int, groups: int) -> None:
    given = tensors(9, heads=heads, groups=groups)
    for state in (None, torch.randn(2, heads * groups, 8, 6)):
        expected, last = by_transformers(name, given, state)
        actual, after = gated_delta_update(*given, state)
        assert actual.shape == (2, 9, heads * groups, 6)
        assert_close(actual, expected)
        assert_close(after, last)


def test_without_the_norm() -> None:
    given = [x * 0.3 for x in tensors(7)]
    expected, last = by_transformers("recurrent", given, None, norm=False)
    assert_close(gated_delta_update(*given, use_qk_l2_norm=0), (expected, last))


def test_token_by_token_is_the_whole() -> None:
    given = tensors(6)
    whole, last = gated_delta_update(*given)
    state = None
    for t in range(6):
        output, state = gated_delta_update(*(x[:, :, t : t + 1] for x in given), state)
        assert_close(output[:, 0], whole[:, t])
    assert_close(state, last)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_have_the_dtype_of_the_query_and_a_state_its_own(dtype: torch.dtype) -> None:
    given = [x.to(dtype) for x in tensors(3)]
    output, state = gated_delta_update(*given)
    assert (output.dtype, state.dtype) == (dtype, dtype)
    wide = torch.zeros(2, 4, 8, 6, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    same, kept = gated_delta_update(*given, wide)
    assert_close(same, output)
    assert kept.dtype == wide.dtype
    assert_close(kept.to(dtype), state)


def test_no_token_leaves_the_state() -> None:
    given, state = tensors(0), torch.randn(2, 4, 8, 6)
    output, after = gated_delta_update(*given, state)
    assert output.shape == (2, 0, 4, 6)
    assert_close(after, state)


@pytest.mark.parametrize(
    ("index", "shape", "message"),
    [
        (0, (2, 5, 8), "query must have rank 4, got 3"),
        (
            2,
            (2, 3, 5, 6),
            r"the number of heads must be a multiple of the query's \(2\), got 3",
        ),
        (3, (2, 4, 6), r"g has shape .*dim S"),
        (4, (4, 5), "beta must have rank 3, got 2"),
        (5, (2, 4, 8, 5), r"initial_state has shape .*dim E"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(
    index: int, shape: tuple[int, ...], message: str
) -> None:
    shapes = [(2, 2, 5, 8), (2, 2, 5, 8), (2, 4, 5, 6), (2, 4, 5), (2, 4, 5), (2, 4, 8, 6)]
    values = shape[1] if index == 2 else 4
    shapes = [(s[0], values, *s[2:]) if i > 1 else s for i, s in enumerate(shapes)]
    shapes[index] = shape
    with pytest.raises(CompositeCallError, match=message):
        Case("gated_delta_update", tuple(shapes)).model(torch.float32, dynamic=False)


def module_inputs(
    batch: int, length: int, *, heads: int = 2, values: int = 4
) -> list[torch.Tensor]:
    return [
        torch.randn(batch, heads, length, 8),
        torch.randn(batch, heads, length, 8),
        torch.randn(batch, values, length, 6),
        -torch.rand(batch, values, length),
        torch.rand(batch, values, length),
        torch.randn(batch, values, 8, 6),
    ]


def test_computes_the_reference() -> None:
    given = module_inputs(2, 5)
    assert_close(GatedDeltaUpdate()(*given), gated_delta_update(*given))
    off = gated_delta_update(*given[:5], use_qk_l2_norm=0)
    assert_close(GatedDeltaUpdate(use_qk_l2_norm=False)(*given[:5]), off)


class Layer(torch.nn.Module):
    """Hands its arguments to the module."""

    def __init__(self, *, norm: bool) -> None:
        super().__init__()
        self.update = GatedDeltaUpdate(norm)

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.update(*given)


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("state", [True, False])
def test_is_the_composite_marked_or_not(marked: bool, state: bool) -> None:
    layer = Layer(norm=not state)
    specs = [ExternalizeSpec(GatedDeltaUpdate, "gated_delta_update", ["use_qk_l2_norm"])]
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    dims = [*({0: batch, 2: length},) * 5, {0: batch}]
    given = module_inputs(2, 5)[: 6 if state else 5]
    program = convert(
        layer,
        tuple(given),
        dynamic_shapes=(tuple(dims[: len(given)]),),
        externalize_modules=specs if marked else None,
    )
    assert program.composites() == {"ai.coreai::gated_delta_update": 1}
    for size in ((2, 5), (1, 1), (3, 40)):
        given = module_inputs(*size)[: len(given)]
        assert_close(list(program.run(*given, kernels=False)), layer(*given))


@pytest.mark.parametrize("index", range(3))
def test_says_what_has_the_wrong_rank(index: int) -> None:
    given = module_inputs(2, 5)
    given[index] = given[index][0]
    with pytest.raises(ValueError, match=r"(query|key|value) must have rank 4, got 3"):
        GatedDeltaUpdate()(*given)


def test_says_which_heads_do_not_match() -> None:
    with pytest.raises(
        ValueError, match=r"the number of heads must be a multiple of the query's \(2\), got 3"
    ):
        GatedDeltaUpdate()(*module_inputs(2, 5, values=3))


@pytest.mark.parametrize(("index", "name"), [(3, "g"), (4, "beta"), (5, "initial_state")])
def test_says_which_shape_does_not_match(index: int, name: str) -> None:
    given = module_inputs(2, 5)
    given[index] = given[index][:1]
    with pytest.raises(ValueError, match=rf"{name} has shape \[1, 4, .*: dim B of"):
        GatedDeltaUpdate()(*given)


def test_says_which_lengths_do_not_match() -> None:
    given = module_inputs(2, 5)
    with pytest.raises(ValueError, match=r"key has .*, query \[2, 2, 4, 8\]: dim S"):
        GatedDeltaUpdate()(given[0][:, :, :4], *given[1:])
    with pytest.raises(ValueError, match=r"value has .*, query \[2, 2, 5, 8\]: dim S"):
        GatedDeltaUpdate()(*given[:2], given[2][:, :, :4], *given[3:])
