"""Linear attention whose Python loops torch unrolls, exported as a scan over the sequence.

The layers of transformers cut the sequence into chunks and loop over the chunks in Python:
``torch.export`` then fixes the number of chunks, and the sequence with it. The recurrence that the
chunks are an algebra of needs no such loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._higher_order_ops.scan import scan

CHUNKED = "torch_chunk_gated_delta_rule"
"""Name of the function in the modules of transformers that :func:`scanned` replaces."""


@contextmanager
def scanned(model: torch.nn.Module) -> Iterator[None]:
    """While active, gated delta layers of ``model`` go through the sequence in a scan.

    ```python
    with scanned(model):
        exported = torch.export.export(model, args, dynamic_shapes=dims)
    ```

    The numbers are those of the chunks up to rounding, for every length. A model without such
    layers is left alone; the functions are back in place on leaving.
    """
    homes = {id(g): g for g in map(_globals_of_forward, model.modules()) if CHUNKED in g}
    replaced = [(home, home[CHUNKED]) for home in homes.values()]
    for home, original in replaced:
        home[CHUNKED] = _unless_packed(original)
    try:
        yield
    finally:
        for home, original in replaced:
            home[CHUNKED] = original


def gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    *,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs of the gated delta rule, and the state after the last token.

    For each token ``S ← exp(g) S``, ``S ← S + k (β (v - kᵀ S))ᵀ``, ``o = Sᵀ q / √D``
    (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks", equation 10).

    Args:
        query: ``[batch, seq, key_heads, D]``.
        key: ``[batch, seq, key_heads, D]``.
        value: ``[batch, seq, heads, Dv]``; ``heads`` is a multiple of ``key_heads``.
        g: Logarithm of the decay, ``[batch, seq, heads]``.
        beta: How much of the new value is written, ``[batch, seq, heads]``.
        initial_state: ``[batch, heads, D, Dv]``; zeros by default.
        use_qk_l2norm_in_kernel: Whether query and key are divided by their lengths first.

    Returns:
        Outputs ``[batch, seq, heads, Dv]`` in the dtype of the query, and the state
        ``[batch, heads, D, Dv]`` in float32, in which everything is computed.
    """
    dtype = query.dtype
    groups = value.shape[2] // key.shape[2]
    tensors = (query, key, value, beta, g)
    query, key, value, beta, g = (x.transpose(0, 1).float() for x in tensors)
    if use_qk_l2norm_in_kernel:
        query, key = (_unit_length(x) for x in (query, key))
    query = query * query.shape[-1] ** -0.5
    if groups > 1:
        query, key = (x.repeat_interleave(groups, dim=2) for x in (query, key))
    shape = (key.shape[1], key.shape[2], key.shape[3], value.shape[3])
    state = key.new_zeros(shape) if initial_state is None else initial_state.float()
    last, outputs = scan(_step, state, (query, key, value, beta, g.exp()))
    return outputs.transpose(0, 1).to(dtype), last


def _step(
    state: torch.Tensor, token: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Let one token forget, correct and read the state."""
    query, key, value, beta, decay = token
    state = state * decay[..., None, None]
    known = (key.unsqueeze(-2) @ state).squeeze(-2)
    write = (value - known) * beta[..., None]
    state = state + key.unsqueeze(-1) * write.unsqueeze(-2)
    return state, (query.unsqueeze(-2) @ state).squeeze(-2)


def _unit_length(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _unless_packed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the scan with the signature of transformers' function."""

    def replacement(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        chunk_size: int = 64,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,  # noqa: FBT001, FBT002 - transformers' signature
        use_qk_l2norm_in_kernel: bool = False,  # noqa: FBT001, FBT002 - the same
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if kwargs.get("cu_seqlens") is not None:
            found: tuple[torch.Tensor, torch.Tensor | None] = original(
                query, key, value, g, beta, chunk_size, initial_state, output_final_state,
                use_qk_l2norm_in_kernel, **kwargs,
            )  # fmt: skip
            return found
        outputs, last = gated_delta_rule(
            query,
            key,
            value,
            g,
            beta,
            initial_state,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        )
        return outputs, last if output_final_state else None

    return replacement


def _globals_of_forward(module: torch.nn.Module) -> dict[str, Any]:
    """Return the names that a module's forward finds outside itself."""
    forward = inspect.unwrap(type(module).forward)
    found: dict[str, Any] = getattr(forward, "__globals__", {})
    return found
