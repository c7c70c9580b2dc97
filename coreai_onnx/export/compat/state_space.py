"""State space layers, exported as one op for any length.

The layers of transformers have two functions: one for a single token, and one for chunks of a fixed
size, to which a sequence is padded. ``torch.export`` takes the second for all lengths, so that a
decoder would compute a whole chunk for each token, and fixes the number of chunks. Here ``scan`` is
an op with a shape function of its own, whose chunks are no longer than the sequence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F

from coreai_onnx.export.compat.patches import patched_in_forwards

NAMESPACE = "coreai_state_space"
CHUNKED = "mamba2_chunk_scan"
"""The function of transformers that `state_space_layers_as_ops` replaces."""
_PACKED = ("cu_seqlens", "seq_idx")
"""Arguments for several sequences in one row, which transformers refuses."""


@contextmanager
def state_space_layers_as_ops(model: torch.nn.Module) -> Iterator[None]:
    """While active, Mamba 2 layers of ``model`` are exported as one op each.

    ```python
    with state_space_layers_as_ops(model):
        exported = torch.export.export(model, args, dynamic_shapes=dims)
    ```

    The results equal those of the chunks up to rounding, for every length. A model without such
    layers is not changed. The functions are restored on exit.
    """
    with patched_in_forwards(model, {CHUNKED: _replacement}):
        yield


@torch.library.custom_op(f"{NAMESPACE}::scan", mutates_args=())
def scan(
    x: torch.Tensor,
    decay: torch.Tensor,
    key: torch.Tensor,
    query: torch.Tensor,
    initial: torch.Tensor | None,
    longest: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs of a selective state space, and the state after the last token.

    For each token ``S ← exp(decay) S + x keyᵀ``, ``y = S query`` (Dao and Gu 2024, "Transformers
    are SSMs", equation 2, with the step multiplied into ``x`` and ``decay``).

    Args:
        x: float32 ``[batch, seq, heads, head_dim]``.
        decay: Logarithm of the decay, float32 ``[batch, seq, heads]``.
        key: float32 ``[batch, seq, groups, state]``; ``heads`` is a multiple of ``groups``.
        query: As ``key``.
        initial: The state before, float32 ``[batch, heads, head_dim, state]``; None for zeros.
        longest: The maximum length of the chunks that a lowering may use.

    Returns:
        float32 ``[batch, seq, heads, head_dim]`` and ``[batch, heads, head_dim, state]``.
    """
    del longest
    batch, _, heads, width = x.shape
    state = x.new_zeros(batch, heads, width, key.shape[3]) if initial is None else initial.clone()
    key, query = (y.repeat_interleave(heads // y.shape[2], dim=2) for y in (key, query))
    outputs = torch.empty_like(x)
    for token, rate in enumerate(decay.exp().unbind(1)):
        added = x[:, token, :, :, None] * key[:, token, :, None, :]
        state = state * rate[..., None, None] + added
        outputs[:, token] = (state @ query[:, token, :, :, None]).squeeze(-1)
    return outputs, state


@scan.register_fake
def _scan_fake(
    x: torch.Tensor,
    decay: torch.Tensor,
    key: torch.Tensor,
    query: torch.Tensor,
    initial: torch.Tensor | None,
    longest: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    del decay, query, initial, longest
    return torch.empty_like(x), x.new_empty(x.shape[0], *x.shape[2:], key.shape[3])


def _replacement(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `scan` with the signature of the function of transformers.

    A function of that name that is not of transformers is returned as it is.
    """
    if original.__module__.partition(".")[0] != "transformers":
        return original
    signature = inspect.signature(original)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if any(given["kwargs"].get(name) is not None for name in _PACKED):
            return original(*args, **kwargs)
        x, step = given["hidden_states"].float(), _step(given).float()
        before = given["initial_states"]
        outputs, last = scan(
            x * step[..., None],
            step * given["A"].float(),
            given["B"].float(),
            given["C"].float(),
            None if before is None else before.float(),
            given["chunk_size"],
        )
        if given["D"] is not None:
            outputs = outputs + given["D"][:, None] * x
        return (outputs, last) if given["return_final_states"] else outputs

    return replacement


def _step(given: Mapping[str, Any]) -> torch.Tensor:
    """Return the length of each step, ``[batch, seq, heads]``."""
    step: torch.Tensor = given["dt"]
    if given["dt_bias"] is not None:
        step = step + given["dt_bias"].to(step.dtype)
    if given["dt_softplus"]:
        step = F.softplus(step)
    return step.clamp(*given["dt_limit"])
