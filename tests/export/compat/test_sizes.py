"""The smaller of two multiples of a size, in every torch."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch.export import Dim
from torch.utils._sympy.functions import Max, Min

from coreai_onnx.export.compat import sizes
from coreai_onnx.export.compat.sizes import (
    multiples_compared,
    offsets_of_biases_known,
    sizes_as_tensors,
)

SIZE = sympy.Symbol("s", integer=True, nonnegative=True)
ANY = sympy.Symbol("u", integer=True)


class Repeated(torch.nn.Module):
    """Repeats the heads of the keys, as grouped queries do."""

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        batch, heads, length, width = keys.shape
        many = keys[:, :, None].expand(batch, heads, 2, length, width)
        return many.reshape(batch, heads * 2, length, width)


def test_repeated_heads_have_any_length() -> None:
    keys = torch.randn(2, 2, 5, 8)
    with multiples_compared():
        program = torch.export.export(Repeated(), (keys,), dynamic_shapes=({2: Dim("length")},))
    other = torch.randn(2, 2, 7, 8)
    torch.testing.assert_close(program.module()(other), Repeated()(other))


@pytest.fixture
def _older_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch be one that has to be patched."""
    monkeypatch.setattr(sizes, "_TORCHS_OWN", "_a_method_of_another_torch")


@pytest.mark.usefixtures("_older_torch")
def test_multiples_of_a_size() -> None:
    new = vars(sizes.MinMaxBase)["__new__"]
    with multiples_compared():
        assert vars(sizes.MinMaxBase)["__new__"] is not new
        assert Min(8 * SIZE, 16 * SIZE) == 8 * SIZE
        assert Max(SIZE, 3 * SIZE) == 3 * SIZE
        assert Min(SIZE, SIZE) == SIZE
    assert vars(sizes.MinMaxBase)["__new__"] is new


@pytest.mark.usefixtures("_older_torch")
def test_what_is_not_known_is_torchs_own() -> None:
    terms = [(ANY, 2 * ANY), (SIZE, ANY), (SIZE, 5), (2, 3)]
    plain = [(Min(*pair), Max(*pair)) for pair in terms[1:]]
    with multiples_compared():
        assert [(Min(*pair), Max(*pair)) for pair in terms[1:]] == plain
        assert sizes._known(Min, terms[0]) is None


@pytest.mark.usefixtures("_older_torch")
def test_a_patched_torch_exports_the_same() -> None:
    keys = torch.randn(2, 2, 5, 8)
    with multiples_compared():
        program = torch.export.export(Repeated(), (keys,), dynamic_shapes=({2: Dim("length")},))
    (output,) = program.graph.output_node().args[0]  # type: ignore[misc, union-attr]
    sizes = output.meta["val"].shape  # type: ignore[union-attr]
    assert (sizes[1], sizes[3]) == (4, 8)


def test_the_offset_of_a_bias_is_that_of_the_example() -> None:
    """As MPT slices its bias; the function is restored."""

    class Bias(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bias = build_mpt_alibi_tensor(8)
            size = x.shape[0]
            return x + bias[max(0, 1 - 2 * size) :][:, max(0, 8 - size) :]

    model = Bias()
    with offsets_of_biases_known(model):
        assert max(3, 5) == 5
        program = torch.export.export(
            model, (torch.ones(3),), dynamic_shapes=({0: Dim("size", max=8)},)
        )
    x = torch.randn(6)
    assert torch.equal(program.module()(x), model(x))
    assert "max" not in globals()


def build_mpt_alibi_tensor(length: int) -> torch.Tensor:
    return torch.arange(length)[None].float()


class Points(torch.nn.Module):
    """Computes the centers of pixels, as deformable attention does."""

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        height, width = image.shape
        sizes = torch.as_tensor([(height, width)], dtype=torch.long, device=image.device)
        rows = torch.linspace(0.5, height - 0.5, height, dtype=image.dtype)
        return sizes.prod(1), image * rows[:, None] + torch.linspace(0, 1, steps=3).sum()


def test_tensors_of_sizes_do_not_fix_them() -> None:
    image = torch.randn(6, 7)
    dims = ({0: Dim("height"), 1: Dim("width")},)
    with sizes_as_tensors():
        program = torch.export.export(Points(), (image,), dynamic_shapes=dims)
    other = torch.randn(9, 4)
    torch.testing.assert_close(program.module()(other), Points()(other))
    with pytest.raises(Exception, match="specialized"):
        torch.export.export(Points(), (image,), dynamic_shapes=dims)
