"""Recurrent layers of a dynamic length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import Dim

import coreai_onnx
from coreai_onnx import TorchConverter, get_decomp_table
from coreai_onnx.export.compat import recurrent
from coreai_onnx.export.compat.recurrent import recurrent_layers_as_ops
from tests.support.tolerances import assert_close

DIMS = {"input": {0: Dim("batch"), 1: Dim("steps", max=4096)}}
OPTIONS: list[dict[str, Any]] = [
    {"num_layers": 2},
    {"bidirectional": True, "bias": False},
]


def layers() -> dict[str, torch.nn.Module]:
    found = {}
    for options in OPTIONS:
        for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
            name = f"{kind.__name__} {options}"
            found[name] = kind(3, 4, batch_first=True, **options).eval()
    found["relu"] = torch.nn.RNN(3, 4, nonlinearity="relu", batch_first=True).eval()
    return found


def flat(results: Any) -> list[torch.Tensor]:
    return [x.detach() for x in torch.utils._pytree.tree_leaves(results)]


@pytest.mark.parametrize("name", layers())
def test_one_conversion_serves_every_length(name: str) -> None:
    layer = layers()[name]
    program = coreai_onnx.convert(layer, (torch.randn(2, 5, 3),), dynamic_shapes=DIMS)
    for size in ((2, 5), (1, 1), (3, 40)):
        x = torch.randn(*size, 3)
        assert_close(list(program.run(x)), flat(layer(x)))


def test_the_exported_program_is_a_program() -> None:
    layer = torch.nn.LSTM(3, 4, batch_first=True).eval()
    with recurrent_layers_as_ops():
        exported = torch.export.export(layer, (torch.randn(2, 5, 3),), dynamic_shapes=DIMS)
    x = torch.randn(3, 9, 3)
    assert_close(flat(exported.module()(x)), flat(layer(x)))
    decomposed = exported.run_decompositions(get_decomp_table())
    program = TorchConverter().add_exported_program(decomposed).to_onnx()
    assert_close(list(program.run(x)), flat(layer(x)))


def test_eager_layers_are_as_before() -> None:
    layer = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True).eval()
    x = torch.randn(5, 3)
    expected = flat(layer(x))
    with recurrent_layers_as_ops():
        assert_close(flat(layer(x)), expected)
        packed = torch.nn.utils.rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
        inside = layer(packed)[0].data
    assert_close(inside, layer(packed)[0].data)


def test_projections_go_torchs_way() -> None:
    layer = torch.nn.LSTM(3, 4, proj_size=2).eval()
    x = torch.randn(5, 2, 3)
    with recurrent_layers_as_ops():
        exported = torch.export.export(layer, (x,))
    targets = {str(node.target) for node in exported.graph.nodes}
    assert "aten.lstm.input" in targets


def test_the_former_name_is_deprecated() -> None:
    with pytest.deprecated_call(match="recurrent_layers_as_ops"), recurrent.whole():
        pass
