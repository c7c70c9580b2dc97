"""Linear attention whose Python loops torch unrolls, exported as one op for any length.

The layers of transformers split the sequence into chunks and loop over the chunks in Python, so
``torch.export`` specializes the number of chunks, and with it the sequence length. The chunks
compute the recurrence of the composite ``gated_delta_update``, which needs no such loop.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from coreai_onnx.composites import torch_ops
from coreai_onnx.export.compat.patches import arguments_by_name, patched_in_forwards

LOOPING = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
"""Names of the functions of transformers that :func:`gated_delta_layers_as_ops` replaces."""


@contextmanager
def gated_delta_layers_as_ops(model: torch.nn.Module) -> Iterator[None]:
    """While active, gated delta layers of ``model`` call ``gated_delta_update``.

    ```python
    with gated_delta_layers_as_ops(model):
        exported = torch.export.export(model, args, dynamic_shapes=dims)
    ```

    The results equal those of the loops up to rounding, for every length. A model without such
    layers is not changed. The functions are restored on exit.
    """
    with patched_in_forwards(model, dict.fromkeys(LOOPING, replacement_of)):
        yield


def scanned(model: torch.nn.Module) -> AbstractContextManager[None]:
    """Deprecated name of `gated_delta_layers_as_ops`."""
    warnings.warn("use gated_delta_layers_as_ops", DeprecationWarning, stacklevel=2)
    return gated_delta_layers_as_ops(model)


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

    This is :mod:`coreai_onnx.composites.gated_delta` with the axes and the float32 state
    of transformers.

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
        ``[batch, heads, D, Dv]`` in float32. Everything is computed in float32.
    """
    tensors = [x.transpose(1, 2) for x in (query, key, value, g, beta)]
    # The composite's own zeros have the dtype of the query, and the state of transformers is
    # float32.
    if initial_state is None and query.dtype != torch.float32:
        shape = (key.shape[0], value.shape[2], key.shape[3], value.shape[3])
        initial_state = torch.zeros(shape, dtype=torch.float32, device=query.device)
    elif initial_state is not None:
        initial_state = initial_state.float()
    outputs, state = torch_ops.gated_delta_update(*tensors, initial_state, use_qk_l2norm_in_kernel)
    return outputs, state


def replacement_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the composite with the signature of the function of transformers."""
    signature = inspect.signature(original)
    tensors = ("query", "key", "value", "g", "beta", "initial_state")

    def replacement(*args: Any, **kwargs: Any) -> Any:
        arguments = arguments_by_name(signature, args, kwargs)
        # Packed sequences, and decays per channel, are not part of the composite.
        if kwargs.get("cu_seqlens") is not None or arguments["g"].dim() > arguments["beta"].dim():
            return original(*args, **kwargs)
        normalizes = arguments["use_qk_l2norm_in_kernel"]
        outputs, last = gated_delta_rule(
            *(arguments[name] for name in tensors), use_qk_l2norm_in_kernel=normalizes
        )
        return outputs, last if arguments["output_final_state"] else None

    vars(replacement)["__signature__"] = signature  # for a replacement of the replacement
    return replacement
