"""Lowerings of losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.nn.modules.linear_cross_entropy  # registers its operators

from tests.lower.checking import check

REDUCTIONS = ["none", "mean", "sum"]
BATCH = torch.export.Dim("batch")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(5,), (4, 5), (4, 5, 3), (2, 5, 3, 2)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("decompose", [False, True])
def test_nll_loss(reduction: str, shape: tuple[int, ...], weighted: bool, decompose: bool) -> None:
    target = torch.randint(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ())
    w = torch.rand(5) if weighted else None
    check(
        lambda x, t, w: F.nll_loss(x, t, w, ignore_index=2, reduction=reduction),
        torch.randn(shape),
        target,
        w,
        others=[(torch.randn(shape), target.clamp(max=1), w)],
        decompose=decompose,
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy(reduction: str, smoothing: float, weighted: bool) -> None:
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    x, w = torch.randn(4, 5, 3), torch.rand(5) if weighted else None
    classes = torch.randint(0, 5, (4, 3))
    check(lambda x, t, w: F.cross_entropy(x, t, w, ignore_index=1, **options), x, classes, w)
    shares = torch.rand(4, 5, 3).softmax(1)
    check(lambda x, t, w: F.cross_entropy(x, t, w, **options), x, shares, w)


def test_ignored_targets_alone_give_nan() -> None:
    check(F.cross_entropy, torch.randn(2, 3), torch.tensor([-100, -100]))


def test_a_dynamic_batch() -> None:
    check(
        F.cross_entropy,
        torch.randn(4, 5),
        torch.randint(0, 5, (4,)),
        dynamic_shapes=({0: BATCH}, {0: BATCH}),
        others=[(torch.randn(7, 5), torch.randint(0, 5, (7,)))],
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margins(reduction: str) -> None:
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    sign = torch.tensor([1, -1, 1, -1])
    check(
        lambda x, y, t: F.margin_ranking_loss(x, y, t, 0.5, reduction=reduction),
        x[:, 0],
        y[:, 0],
        sign,
    )
    check(lambda x, t: F.hinge_embedding_loss(x, t, 1.5, reduction=reduction), x[:, 0], sign)
    check(lambda x, y, t: F.cosine_embedding_loss(x, y, t, 0.1, reduction=reduction), x, y, sign)
    labels = torch.tensor([[1, 3, -1, 2, 0], [-1, 0, 1, 2, 3], [4, 3, 2, 1, 0], [0, 0, -1, 1, 1]])
    check(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), x, labels)
    if reduction != "none":  # torch's fake tensors and its kernel disagree on the rank
        check(lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), x[0], labels[0])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("log_input", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_poisson(reduction: str, log_input: bool, full: bool) -> None:
    check(
        lambda x, t: F.poisson_nll_loss(x, t, log_input, full, reduction=reduction),
        torch.rand(4, 5),
        torch.randint(0, 5, (4, 5)).float(),
    )


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss")
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_that_decompose(reduction: str) -> None:
    x, y = torch.randn(4, 5), torch.rand(4, 5)
    for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss):
        check(lambda x, y, f=loss: f(x, y, reduction=reduction), x, y)
    check(lambda x, y: F.binary_cross_entropy(x, y, reduction=reduction), x.sigmoid(), y)
    check(lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction), x, y)
    check(lambda x, y: F.kl_div(x, y, reduction=reduction), x, y)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_chunked_linear_cross_entropy(reduction: str) -> None:
    x, w, t = torch.randn(8, 3), torch.randn(4, 3), torch.tensor([0, 3, 1, 2, -100, 1, 0, 2])
    weight = torch.rand(4)
    ops = torch.ops.torch_nn
    if reduction == "none":
        chunked = ops._linear_cross_entropy_batch_chunked_no_reduction
        check(lambda x, w, t, c: chunked(x, w, t, None, c, -100, 2, "x", x.dtype), x, w, t, weight)
        return
    options = (reduction, -100, 0.0, 2, "compact", torch.float32, True, False, False, False)
    chunked = ops._linear_cross_entropy_batch_chunked
    check(lambda x, w, t, b: chunked(x, w, t, b, b, *options)[0], x, w, t, weight)


def test_hinges_of_booleans() -> None:
    x, target = torch.randn(5), torch.tensor([True, False, True, False, False])
    check(F.hinge_embedding_loss, x, target)
