"""Linear attention by the gated delta rule."""

from __future__ import annotations

import torch

from coreai_onnx.composites.checks import (
    Attributes,
    Dims,
    Tensors,
    compute_dtype,
    not_multiple,
    wrong_rank,
)
from coreai_onnx.composites.declaration import Attribute, Composite, Input

NORM_EPS = 1e-6
"""Added to the squared L2 norm of a query or key before it is divided by its norm."""


def gated_delta_update(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    *,
    use_qk_l2_norm: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs of the gated delta rule, and the state after the last token.

    For each token ``S ← exp(g) S``, ``S ← S + k (β (v - kᵀ S))ᵀ``, ``o = Sᵀ q / √Dk``
    (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", equation 10).

    Args:
        query: ``[batch, heads, length, Dk]``, floating.
        key: ``[batch, heads, length, Dk]`` in the dtype of ``query``.
        value: ``[batch, value_heads, length, Dv]`` in the dtype of ``query``;
            ``value_heads % heads == 0``, value head ``h`` reads query and key head
            ``h // (value_heads / heads)``.
        g: Logarithm of the decay, ``[batch, value_heads, length]``; the dtype of ``query``, or
            float32.
        beta: How much of the new value is written, ``[batch, value_heads, length]``; the dtype of
            ``query``, or float32.
        initial_state: ``[batch, value_heads, Dk, Dv]``, the dtype of ``query`` or float32; zeros
            if absent.
        use_qk_l2_norm: Nonzero: query and key are first divided by their L2 norms,
            ``sqrt(sum(x²) + 1e-6)``.

    Returns:
        The outputs ``[batch, length, value_heads, Dv]`` in the dtype of ``query``, and the state
        ``[batch, value_heads, Dk, Dv]`` in the dtype of ``initial_state``, or of ``query`` if it is
        absent. Everything is computed in float32 (float64 in float64) and rounded once.
    """
    wide = compute_dtype(query)
    last_dtype = query.dtype if initial_state is None else initial_state.dtype
    batch, heads, length, lanes = key.shape
    groups = value.shape[1] // heads
    q, k = query.to(wide), key.to(wide)
    if use_qk_l2_norm:
        q, k = _unit_length(q), _unit_length(k)
    q = q * lanes**-0.5
    q, k = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (q, k))
    v, rate, decay = value.to(wide), beta.to(wide), g.to(wide).exp()
    if initial_state is None:
        state = q.new_zeros(batch, value.shape[1], lanes, value.shape[3])
    else:
        state = initial_state.to(wide)
    outputs = []
    for t in range(length):
        state = state * decay[:, :, t, None, None]
        recalled = (k[:, :, t, None, :] @ state).squeeze(-2)
        write = (v[:, :, t] - recalled) * rate[:, :, t, None]
        state = state + k[:, :, t, :, None] * write[:, :, None, :]
        outputs.append((q[:, :, t, None, :] @ state).squeeze(-2))
    # Without tokens, the transposed values are empty outputs of the right shape.
    output = torch.stack(outputs, dim=1) if outputs else v.transpose(1, 2)
    return output.to(query.dtype), state.to(last_dtype)


def _unit_length(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + NORM_EPS)


def _check(dims: Dims, attributes: Attributes) -> str:
    del attributes
    wrong = wrong_rank(dims, query=4, key=4, value=4, g=3, beta=3, initial_state=4)
    if wrong:
        return wrong
    heads = dims["query"][1]
    return not_multiple("value: the number of heads", dims["value"][1], "the query's", heads)


def _admissible(inputs: Tensors) -> Tensors:
    """Return inputs with a non-positive ``g``, a decay, and ``beta`` between zero and one."""
    return {**inputs, "g": -inputs["g"].abs(), "beta": torch.sigmoid(inputs["beta"])}


GATED_DELTA_UPDATE = Composite(
    name="gated_delta_update",
    inputs=(
        Input("query", dims="B H S D", aliases=("q",)),
        Input("key", dims="B H S D", aliases=("k",)),
        Input("value", dims="B V|H S E", aliases=("v",)),
        Input("g", dtype="any", dims="B V|H S", aliases=("decay",)),
        Input("beta", dtype="any", dims="B V|H S"),
        Input(
            "initial_state",
            optional=True,
            dtype="any",
            dims="B V|H D E",
            aliases=("state", "recurrent_state"),
        ),
    ),
    outputs=("output", "state"),
    output_dims=("B S V E", "B V D E"),
    output_likes=("query", "initial_state"),
    attributes=(
        Attribute(
            "use_qk_l2_norm", "int", 1, aliases=("use_qk_l2norm_in_kernel",), structural=True
        ),
    ),
    reference=gated_delta_update,
    kernel=True,
    formula="S = exp(g) S; S = S + k (beta (v - k^T S))^T; output = S^T q / sqrt(D), by token",
    variant_axes=(("no_state",), ("no_norm",)),
    check=_check,
    admissible=_admissible,
    aten=("coreai.gated_delta_update.default",),
)
