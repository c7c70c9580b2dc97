"""LSTM, GRU and Elman (RNN) layers, lowered to ONNX's own ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coreai_onnx.errors import LoweringError
from coreai_onnx.export.compat.recurrent import NAMESPACE
from coreai_onnx.lower.aten.linalg.matmul import linear
from coreai_onnx.lower.nodes.builder import OpBuilder
from coreai_onnx.lower.nodes.values import Dim, Value, as_dim, dims_of, dtype_of, rank_of, set_dims
from coreai_onnx.lower.walk.registry import lowers


@dataclass(frozen=True)
class Cell:
    """The mapping of a torch layer to an ONNX op.

    Attributes:
        op_type: ONNX op.
        gates: For every gate of ONNX, its position among torch's gates.
        states: The number of states: the hidden state, and the cell state of an LSTM.
        attributes: Further attributes, with the activations once per direction.
    """

    op_type: str
    gates: tuple[int, ...]
    states: int = 1
    attributes: tuple[tuple[str, Any], ...] = ()


# torch's gates are i, f, g, o; those of ONNX are i, o, f, c.
LSTM = Cell("LSTM", (0, 3, 1, 2), states=2)
# torch's gates are r, z, n; those of ONNX are z, r, h. torch multiplies the product of the hidden
# state by the reset gate, ONNX the hidden state itself unless linear_before_reset is set.
GRU = Cell("GRU", (1, 0, 2), attributes=(("linear_before_reset", 1),))
TANH = Cell("RNN", (0,), attributes=(("activations", "Tanh"),))
RELU = Cell("RNN", (0,), attributes=(("activations", "Relu"),))


@dataclass(frozen=True)
class Layers:
    """A stack of recurrent layers.

    Attributes:
        cell: The kind of cell.
        params: Weights and biases, in torch's order.
        has_biases: Whether there are biases.
        count: Number of layers.
        dropout: Probability of the dropout between layers.
        bidirectional: Whether every layer runs in both directions.
    """

    cell: Cell
    params: Sequence[Value]
    has_biases: bool
    count: int
    dropout: float
    bidirectional: bool


# ---------------------------------------------------------------------- torch's names
@lowers("aten.lstm.input", f"{NAMESPACE}.lstm.default", cell=LSTM)
@lowers("aten.gru.input", f"{NAMESPACE}.gru.default", cell=GRU)
@lowers("aten.rnn_tanh.input", f"{NAMESPACE}.rnn_tanh.default", cell=TANH)
@lowers("aten.rnn_relu.input", f"{NAMESPACE}.rnn_relu.default", cell=RELU)
def recurrent(
    op: OpBuilder,
    input: Value,
    hx: Value | Sequence[Value],
    params: Sequence[Value],
    *,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    cell: Cell,
) -> list[Value]:
    """All hidden states, the last hidden states, and for LSTM the last cell states."""
    layers = Layers(cell, params, has_biases, num_layers, dropout * train, bidirectional)
    states = [hx] if isinstance(hx, Value) else hx
    return _sequence(op, layers, input, states, batch_first=batch_first)


# ---------------------------------------------------------------------- single steps
@lowers("aten.lstm_cell.default")
def lstm_cell(
    op: OpBuilder,
    input: Value,
    hx: Sequence[Value],
    w_ih: Value,
    w_hh: Value,
    b_ih: Value | None = None,
    b_hh: Value | None = None,
) -> tuple[Value, Value]:
    """c' = σ(f) c + σ(i) tanh(g), h' = σ(o) tanh(c'), with i, f, g, o from input and h."""
    gates = op.Add(linear(op, input, w_ih, b_ih), linear(op, hx[0], w_hh, b_hh))
    i, f, g, o = op.Split(gates, axis=-1, num_outputs=4, _outputs=4)
    kept, added = op.Mul(op.Sigmoid(f), hx[1]), op.Mul(op.Sigmoid(i), op.Tanh(g))
    cell = op.Add(kept, added)
    return op.Mul(op.Sigmoid(o), op.Tanh(cell)), cell


@lowers("aten.gru_cell.default")
def gru_cell(
    op: OpBuilder,
    input: Value,
    hx: Value,
    w_ih: Value,
    w_hh: Value,
    b_ih: Value | None = None,
    b_hh: Value | None = None,
) -> Value:
    """h' = n + σ(z) (h - n), with n = tanh(n_x + σ(r) n_h)."""
    parts = [linear(op, input, w_ih, b_ih), linear(op, hx, w_hh, b_hh)]
    (rx, zx, nx), (rh, zh, nh) = (op.Split(p, axis=-1, num_outputs=3, _outputs=3) for p in parts)
    reset, update = op.Sigmoid(op.Add(rx, rh)), op.Sigmoid(op.Add(zx, zh))
    new = op.Tanh(op.Add(nx, op.Mul(reset, nh)))
    return op.Add(new, op.Mul(update, op.Sub(hx, new)))


@lowers("aten.rnn_tanh_cell.default", activation="Tanh")
@lowers("aten.rnn_relu_cell.default", activation="Relu")
def rnn_cell(
    op: OpBuilder,
    input: Value,
    hx: Value,
    w_ih: Value,
    w_hh: Value,
    b_ih: Value | None = None,
    b_hh: Value | None = None,
    *,
    activation: str,
) -> Value:
    """The activation of both products."""
    total = op.Add(linear(op, input, w_ih, b_ih), linear(op, hx, w_hh, b_hh))
    return op.node(activation, total)


# ---------------------------------------------------------------------- layers
def _sequence(
    op: OpBuilder, layers: Layers, x: Value, hx: Sequence[Value], *, batch_first: bool
) -> list[Value]:
    """Lower the layers for [steps, batch, features], [batch, steps, features] or no batch."""
    unbatched = rank_of(x) == 2
    states = [op.unsqueeze(h, [1]) if unbatched else h for h in hx]
    x = op.unsqueeze(x, [1]) if unbatched else x
    swap = batch_first and not unbatched
    y, *last = _run(op, layers, op.transpose(x, [1, 0, 2]) if swap else x, states)
    if unbatched:
        return [op.squeeze(y, [1]), *(op.squeeze(h, [1]) for h in last)]
    return [op.transpose(y, [1, 0, 2]) if swap else y, *last]


def _run(op: OpBuilder, layers: Layers, x: Value, hx: Sequence[Value]) -> list[Value]:
    """Return all hidden states [steps, batch, directions * hidden], and the last states."""
    directions = 2 if layers.bidirectional else 1
    per_direction = 4 if layers.has_biases else 2
    # A projection adds a weight per layer and direction; no other argument indicates one.
    if len(layers.params) != layers.count * directions * per_direction:
        raise LoweringError(
            "a recurrent layer with projections (proj_size) has no ONNX op",
            op.scope.where,
            "put a linear layer behind each layer, or decompose it first",
        )
    collected: list[list[Value]] = [[] for _ in hx]
    per_layer = directions * per_direction
    for layer in range(layers.count):
        params = layers.params[layer * per_layer : (layer + 1) * per_layer]
        parts = [params[i : i + per_direction] for i in range(0, per_layer, per_direction)]
        first, end = layer * directions, (layer + 1) * directions
        # torch stacks the states of all layers and directions on the first axis.
        states = [op.slice(h, 0, first, end) if layers.count > 1 else h for h in hx]
        x, *last = _layer(op, layers.cell, x, parts, states)
        for states_of_layers, h in zip(collected, last, strict=True):
            states_of_layers.append(h)
        if layers.dropout and layer < layers.count - 1:
            x = set_dims(op.Dropout(x, layers.dropout, True), dims_of(x))
    return [x, *(h[0] if len(h) == 1 else op.Concat(*h, axis=0) for h in collected)]


def _layer(
    op: OpBuilder, cell: Cell, x: Value, params: Sequence[Sequence[Value]], states: Sequence[Value]
) -> list[Value]:
    """Return one layer's hidden states [steps, batch, directions * hidden] and last states."""
    steps, batch, _ = dims_of(x)
    hidden = dims_of(params[0][1])[1]
    stacked = [_stacked(op, [_reordered(op, p[i], cell, hidden) for p in params]) for i in (0, 1)]
    bias = None
    if len(params[0]) == 4:
        # ONNX has one vector of biases: those of the input, then those of the hidden state.
        both = [
            op.Concat(*(_reordered(op, b, cell, hidden) for b in p[2:]), axis=0) for p in params
        ]
        bias = _stacked(op, both)
    options = dict(cell.attributes)
    if "activations" in options:
        options["activations"] = [options["activations"]] * len(params)
    # onnxruntime's kernels work in float32 only, although more dtypes are registered
    operands = [x, *stacked, bias, None, *states]
    y, *last = getattr(op, cell.op_type)(
        *(v if v is None else op.cast(v, torch.float32) for v in operands),
        hidden_size=int(hidden),
        direction="bidirectional" if len(params) == 2 else "forward",
        _outputs=1 + cell.states,
        **options,
    )
    joined: Dim = as_dim(hidden * len(params))
    if len(params) == 1:
        # ONNX gives directions an axis; torch joins them along the features.
        flat = op.squeeze(y, [1])
    else:
        flat = op.reshape(op.transpose(y, [0, 2, 1, 3]), [steps, batch, joined])
    results = [op.cast(v, dtype_of(x)) for v in (flat, *last)]
    return [set_dims(results[0], [steps, batch, joined]), *results[1:]]


def _stacked(op: OpBuilder, parts: Sequence[Value]) -> Value:
    rows = [op.unsqueeze(p, [0]) for p in parts]
    return rows[0] if len(rows) == 1 else op.Concat(*rows, axis=0)


def _reordered(op: OpBuilder, weight: Value, cell: Cell, hidden: Dim) -> Value:
    """Return a weight with its gates in ONNX's order."""
    if len(cell.gates) == 1:
        return weight
    parts = [op.slice(weight, 0, as_dim(g * hidden), as_dim((g + 1) * hidden)) for g in cell.gates]
    return op.Concat(*parts, axis=0)
