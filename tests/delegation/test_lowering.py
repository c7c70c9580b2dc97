"""to_backend: a whole program by the id of a backend, or the parts of a partitioner."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

from coreai_onnx.delegation import LoweredModule, delegates_of, to_backend, to_edge
from tests.delegation.demo_backend import DEMO, Tagging

X = torch.randn(3)


@pytest.fixture
def edge():
    return to_edge(export(torch.nn.ReLU(), (X,))).exported_program()


def test_a_whole_program(edge) -> None:
    made = to_backend(DEMO, edge, [])
    assert isinstance(made, LoweredModule)
    assert made.original_module is edge


def test_parts(edge) -> None:
    made = to_backend(edge, Tagging(torch.ops.aten.relu.default))
    assert [part.processed_bytes for part in delegates_of(made)] == [b"aten.relu.default"]
    assert not delegates_of(edge)
    assert torch.equal(made.module()(X), X.relu())


def test_other_arguments(edge) -> None:
    with pytest.raises(TypeError, match=r"to_backend takes .* not \(ExportedProgram, str\)"):
        to_backend(edge, DEMO)
