"""The suite's faster decompositions give the programs that torch gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from coreai_onnx import get_decomp_table
from tests.lower.checking import Wrapped
from tests.support import quick_decompositions

X = torch.randn(2, 3, 6, 6)
CASES = {
    "pooling": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "norms": lambda x: F.gelu(F.layer_norm(x, (6,))) + F.group_norm(x, 3),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "resize": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "linalg": lambda x: torch.linalg.det(x) + torch.einsum("bcij,bcjk->bc", x, x),
    "views": lambda x: x.reshape(2, -1).chunk(3, 1)[1].add_(1),
    "losses": lambda x: F.cross_entropy(x.flatten(2), x.flatten(2).argmax(1)),
    "dropout": lambda x: F.dropout(x, 0.5, training=False).softmax(-1),
}


@pytest.fixture
def as_torch_has_it() -> Iterator[None]:
    """For the length of a test, torch's own functions."""
    quick_decompositions.remove()
    yield
    quick_decompositions.install()


def graphs(case: str) -> list[str]:
    """The graph of a case, decomposed with each table."""
    program = torch.export.export(Wrapped(CASES[case]), (X,))
    tables = (None, get_decomp_table(), {})
    return [str(program.run_decompositions(table).graph) for table in tables]


@pytest.mark.parametrize("case", CASES)
def test_the_programs_are_those_of_torch(case: str, request: pytest.FixtureRequest) -> None:
    quick = graphs(case)
    request.getfixturevalue("as_torch_has_it")
    assert quick == graphs(case)


def test_an_operator_registered_later_is_seen() -> None:
    graphs("views")
    library = torch.library.Library("coreai_quick_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
    op = torch.ops.coreai_quick_test.twice.default
    program = torch.export.export(Wrapped(op), (X,))
    targets = [n.target for n in program.graph.nodes]
    kept = [n.target for n in program.run_decompositions({}).graph.nodes]
    taken_apart = [n.target for n in program.run_decompositions().graph.nodes]
    assert op in targets
    assert op in kept
    assert op not in taken_apart
