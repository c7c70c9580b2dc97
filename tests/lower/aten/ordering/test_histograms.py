"""Histograms of one and of several coordinates."""

from __future__ import annotations

import torch

from tests.lower.checking import check

X = torch.tensor([0.1, 0.5, 0.5, 2.0, 3.9, -1.0, 4.0, 4.5])
EDGES = torch.tensor([-0.5, 0.5, 2.0, 4.0])


def test_histc() -> None:
    check(
        lambda x: (
            torch.histc(x),
            torch.histc(x, 4, 0, 4),
            torch.histc(x, 3, 2, 2),
            torch.histc(x[1:3], 5),
            torch.histc(x.view(2, 4).double(), 3),
        ),
        X,
    )


def test_histogram_of_equal_bins() -> None:
    check(
        lambda x: (
            *torch.histogram(x, 5),
            *torch.histogram(x, 4, range=(0.0, 4.0)),
            *torch.histogram(x, 3, range=(0.0, 4.0), weight=x, density=True),
            *torch.histogram(x[1:3], 2),
        ),
        X,
    )


def test_histogram_of_given_edges() -> None:
    check(lambda x, e: (*torch.histogram(x, e), *torch.histogram(x, e, density=True)), X, EDGES)


def test_several_coordinates() -> None:
    rows = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))

    def histograms(x: torch.Tensor, e: torch.Tensor) -> list[torch.Tensor]:
        counts, edges = torch.histogramdd(x, [3, 4])
        given, _ = torch.histogramdd(x * 4, [e, e], weight=x[:, 0])
        ranged, bounds = torch.histogramdd(x, 2, range=[0.0, 1.0, 0.2, 0.8], density=True)
        return [counts, *edges, given, ranged, *bounds]

    check(histograms, rows, EDGES)


def test_of_nothing() -> None:
    check(lambda x: (torch.histc(x, 3), *torch.histogram(x, 3)), torch.zeros(0))
