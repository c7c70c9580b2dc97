"""Lowerings of recurrent layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.lower.checking import check, op_types

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")
LAYERS: dict[str, Any] = {
    "LSTM": torch.nn.LSTM,
    "GRU": torch.nn.GRU,
    "tanh": torch.nn.RNN,
    "relu": lambda *a, **k: torch.nn.RNN(*a, nonlinearity="relu", **k),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_first": True},
    {"bidirectional": True},
    {"num_layers": 2, "bias": False},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_layers(kind: str, options: dict[str, Any]) -> None:
    model = check(LAYERS[kind](3, 4, **options).eval(), torch.randn(5, 2, 3))
    name = kind if kind.isupper() else "RNN"
    assert op_types(model).count(name) == options.get("num_layers", 1)


@pytest.mark.parametrize("kind", LAYERS)
def test_given_states_and_no_batch(kind: str) -> None:
    layer = LAYERS[kind](3, 4, num_layers=2).eval()
    h = torch.randn(2, 4)
    check(layer, torch.randn(5, 3), (h, h + 1) if kind == "LSTM" else h)


def test_a_dynamic_batch() -> None:
    batch = torch.export.Dim("batch", min=2)
    for layer in (torch.nn.LSTM, torch.nn.GRU):
        check(
            layer(3, 4, bidirectional=True, batch_first=True).eval(),
            torch.randn(5, 6, 3),
            dynamic_shapes=({0: batch},),
            others=[(torch.randn(3, 6, 3),)],
        )


@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
@pytest.mark.parametrize("decompose", [False, True])
def test_cells(cell: Any, decompose: bool) -> None:
    check(cell(3, 4).eval(), torch.randn(2, 3), decompose=decompose)


def test_projections_are_refused() -> None:
    from coreai_onnx.errors import LoweringError

    with pytest.raises(LoweringError, match="proj_size"):
        check(torch.nn.LSTM(3, 4, proj_size=2).eval(), torch.randn(5, 2, 3))
