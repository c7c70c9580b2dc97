"""GatedDeltaUpdate: coreai-torch's constructor and forward, one op for every length."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx import ExternalizeSpec, convert
from coreai_onnx.composites import GatedDeltaUpdate
from coreai_onnx.composites.gated_delta import gated_delta_update
from tests.support.tolerances import assert_close


def tensors(batch: int, length: int, *, heads: int = 2, values: int = 4) -> list[torch.Tensor]:
    return [
        torch.randn(batch, heads, length, 8),
        torch.randn(batch, heads, length, 8),
        torch.randn(batch, values, length, 6),
        -torch.rand(batch, values, length),
        torch.rand(batch, values, length),
        torch.randn(batch, values, 8, 6),
    ]


def test_computes_the_reference() -> None:
    given = tensors(2, 5)
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
    given = tensors(2, 5)[: 6 if state else 5]
    program = convert(
        layer,
        tuple(given),
        dynamic_shapes=(tuple(dims[: len(given)]),),
        externalize_modules=specs if marked else None,
    )
    assert program.composites() == {"ai.coreai::gated_delta_update": 1}
    for size in ((2, 5), (1, 1), (3, 40)):
        given = tensors(*size)[: len(given)]
        assert_close(list(program.run(*given, kernels=False)), layer(*given))


@pytest.mark.parametrize("index", range(3))
def test_says_what_has_the_wrong_rank(index: int) -> None:
    given = tensors(2, 5)
    given[index] = given[index][0]
    with pytest.raises(ValueError, match=r"(query|key|value) must have rank 4, has shape"):
        GatedDeltaUpdate()(*given)


def test_says_which_heads_do_not_match() -> None:
    with pytest.raises(
        ValueError, match="value has 3 heads, not a multiple of the 2 heads of query"
    ):
        GatedDeltaUpdate()(*tensors(2, 5, values=3))


@pytest.mark.parametrize(("index", "name"), [(3, "g"), (4, "beta"), (5, "initial_state")])
def test_says_which_shape_does_not_match(index: int, name: str) -> None:
    given = tensors(2, 5)
    given[index] = given[index][:1]
    with pytest.raises(ValueError, match=rf"{name} must have shape \(2, 4, .*, has \(1, 4"):
        GatedDeltaUpdate()(*given)


def test_says_which_lengths_do_not_match() -> None:
    given = tensors(2, 5)
    with pytest.raises(ValueError, match=r"query \(2, 2, 4, 8\) and key .* one shape"):
        GatedDeltaUpdate()(given[0][:, :, :4], *given[1:])
    with pytest.raises(ValueError, match=r"value \(2, 4, 4, 6\) has another batch or length"):
        GatedDeltaUpdate()(*given[:2], given[2][:, :, :4], *given[3:])
