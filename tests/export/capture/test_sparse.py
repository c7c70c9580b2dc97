"""Sparse buffers and inputs become dense."""

from __future__ import annotations

import pytest
import torch

from coreai_onnx import compare, convert
from coreai_onnx.errors import ExportError
from coreai_onnx.export.capture.arguments import dense, dense_buffers

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
X = torch.randn(3, 4)


class Graph(torch.nn.Module):
    """Multiplies by a sparse matrix in all ways there are."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.register_buffer("adjacency", torch.randn(4, 4).relu().to_sparse(layout=layout))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = self.adjacency.to_dense() + 1
        return torch.sparse.mm(self.adjacency, x.T), self.adjacency @ x.T, given


def test_a_sparse_buffer() -> None:
    module = Graph(torch.sparse_coo)
    program = convert(module, X)
    assert module.adjacency.layout == torch.sparse_coo
    compare(program, module, (torch.randn(3, 4),)).assert_close()


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_buffers_are_dense_for_a_time(layout: torch.layout) -> None:
    module = Graph(layout)
    before = module.adjacency
    with dense_buffers(module):
        assert torch.equal(module.adjacency, before.to_dense())
        assert module.adjacency.layout == torch.strided
    assert module.adjacency is before
    convert(module, X)
    with pytest.raises(ExportError, match="no export"):
        convert(Fails(before), X)


class Fails(torch.nn.Module):
    """Does not export."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no export")


def test_dense_tensors_stay_what_they_are() -> None:
    assert dense(X) is X
    weight = torch.nn.Parameter(torch.eye(2).to_sparse(), requires_grad=False)
    made = dense(weight)
    assert isinstance(made, torch.nn.Parameter)
    assert not made.requires_grad
    assert torch.equal(made, torch.eye(2))
