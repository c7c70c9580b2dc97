"""State space layers, exported for any length.

The layers of transformers have two functions: one for a single token, and one for a sequence.

* Mamba 2 computes chunks of a fixed size, to which a sequence is padded. ``torch.export`` takes
  these for all lengths, so that a decoder would compute a whole chunk for each token, and fixes the
  number of chunks. Here ``scan`` is an op with a shape function of its own, whose chunks are no
  longer than the sequence.
* Mamba, Falcon-Mamba, Jamba, RecurrentGemma and RWKV have a Python loop over the tokens, which
  torch unrolls, and which begins with zeros, whatever the state before. Here it is torch's own
  ``scan``, from the state before.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._higher_order_ops import scan as scan_tokens
from torch.nn import functional as F

from coreai_onnx.export.compat.patches import (
    arguments_by_name,
    globals_of_forward,
    patched,
    patched_in_forwards,
)

NAMESPACE = "coreai_state_space"
CHUNKED = "mamba2_chunk_scan"
"""The function of transformers that `state_space_layers_as_ops` replaces."""
SELECTIVE, LINEAR, WKV = "mamba_selective_scan", "_rnn_scan", "rwkv_linear_attention"
"""The loops over tokens that it replaces: of Mamba, RecurrentGemma (a method) and RWKV."""
_PACKED = ("cu_seqlens", "seq_idx")
"""Arguments for several sequences in one row, which transformers refuses."""

_NEVER = 1e38
"""The exponent, negated, of RWKV's sums before the first token, as transformers has it."""


@contextmanager
def state_space_layers_as_ops(model: torch.nn.Module) -> Iterator[None]:
    """While active, state space layers of ``model`` are exported as one op or one scan each.

    ```python
    with state_space_layers_as_ops(model):
        exported = torch.export.export(model, args, dynamic_shapes=dims)
    ```

    The results equal those of the layers up to rounding, for every length. A model without such
    layers is not changed. The functions are restored on exit.
    """
    classes = {type(module) for module in model.modules()}
    with ExitStack() as patches:
        patches.enter_context(patched_in_forwards(model, {CHUNKED: _replacement, WKV: _wkv}))
        for cls in classes:
            home = globals_of_forward(cls)
            if _calls_selective_scan(cls) and _is_of_transformers(home.get(SELECTIVE)):
                patches.enter_context(patched(cls, "forward", functools.partial(_mixer, home)))
            if _is_of_transformers(getattr(cls, LINEAR, None)):
                patches.enter_context(patched(cls, LINEAR, _linear_recurrence))
        yield


def _calls_selective_scan(module_class: type) -> bool:
    # The class of a traced module has no forward: torch raises an error when it is read.
    forward = inspect.unwrap(getattr(module_class, "forward", module_class))
    return inspect.isfunction(forward) and SELECTIVE in forward.__code__.co_names


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
    x: torch.Tensor, _decay: torch.Tensor, key: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[0], *x.shape[2:], key.shape[3])


def _replacement(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `scan` with the signature of the function of transformers.

    A function of that name that is not of transformers is returned as it is.
    """
    if not _is_of_transformers(original):
        return original
    signature = inspect.signature(original)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        arguments = arguments_by_name(signature, args, kwargs)
        if any(arguments["kwargs"].get(name) is not None for name in _PACKED):
            return original(*args, **kwargs)
        # The op has float32 states only, whatever the dtype of the model is.
        x, step = arguments["hidden_states"].float(), _step(arguments).float()
        before = arguments["initial_states"]
        outputs, last = scan(
            x * step[..., None],
            step * arguments["A"].float(),
            arguments["B"].float(),
            arguments["C"].float(),
            None if before is None else before.float(),
            arguments["chunk_size"],
        )
        if arguments["D"] is not None:
            outputs = outputs + arguments["D"][:, None] * x
        return (outputs, last) if arguments["return_final_states"] else outputs

    return replacement


def _step(arguments: Mapping[str, Any]) -> torch.Tensor:
    """Return the length of each step, ``[batch, seq, heads]``."""
    step: torch.Tensor = arguments["dt"]
    if arguments["dt_bias"] is not None:
        step = step + arguments["dt_bias"].to(step.dtype)
    if arguments["dt_softplus"]:
        step = F.softplus(step)
    limited, before = step.clamp(*arguments["dt_limit"]), arguments["initial_states"]
    # After a softplus, a limit of 0 changes nothing.
    if before is None or tuple(arguments["dt_limit"]) == (0.0, math.inf):
        return limited
    # transformers computes a token that continues a text in another function, without limits: the
    # steps of Zamba 2 and Nemotron-H differ. Before the first token, the state is zero.
    is_next = (torch.scalar_tensor(step.shape[1]) == 1) & before.any()
    return torch.where(is_next, step, limited)


def _is_of_transformers(function: Any) -> bool:
    return getattr(function, "__module__", "").partition(".")[0] == "transformers"


# ---------------------------------------------------------------------- loops over tokens
def recurrent_state(layer: Any) -> torch.Tensor | None:
    """Return the state of a layer of a cache of transformers; None before the first call."""
    return layer.recurrent_states[0] if layer.has_previous_state[0] else None


def _mixer(home: dict[str, Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward of a layer of Mamba with a scan that continues from the layer's state.

    Args:
        home: The globals of the forward.
        original: The forward.
    """

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        cache = options.get("cache", options.get("cache_params"))  # "cache" from 5.24 on
        # The function of transformers does not receive the state of the layer.
        state = None if cache is None else recurrent_state(cache.layers[self.layer_idx])
        states: Iterator[torch.Tensor | None] = itertools.repeat(state)
        # Zamba calls it for one head after the other, and its state has an axis of heads.
        if state is not None and state.ndim == 4:
            # The carry of a scan is contiguous.
            states = iter([x.contiguous() for x in state.unbind(1)])
        with patched(home, SELECTIVE, functools.partial(_selective_scan, states)):
            return original(self, *args, **options)

    return forward


def _selective_scan(
    states: Iterator[torch.Tensor | None], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Return ``S ← exp(dt A) S + dt x Bᵀ``, ``y = S C + D x`` as a scan (Gu and Dao 2023, "Mamba").

    Args:
        states: The state before the first token of each call, ``[batch, channels, state]``; None
            for zeros.
        original: The function of transformers. Its ``hidden_states``, ``dt`` and ``z`` are
            ``[batch, channels, seq]``, ``A`` is ``[channels, state]``, and ``B`` and ``C`` are
            ``[batch, state, seq]``.
    """
    signature = inspect.signature(original)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        arguments = arguments_by_name(signature, args, kwargs)
        x, step, rate, bias = (arguments[n] for n in ("hidden_states", "dt", "A", "delta_bias"))
        step = step if bias is None else step + bias.to(step.dtype)[..., None]
        step = F.softplus(step) if arguments["delta_softplus"] else step
        initial = next(states)
        state = x.new_zeros(x.shape[0], *rate.shape) if initial is None else initial

        def update(state: torch.Tensor, token: Any) -> tuple[torch.Tensor, torch.Tensor]:
            x, step, key, query = token
            added = (step * x)[..., None] * key[:, None]
            state = torch.exp(step[..., None] * rate) * state + added
            return state, torch.matmul(state, query[..., None]).squeeze(-1)

        tokens = tuple(
            y.float().permute(2, 0, 1) for y in (x, step, arguments["B"], arguments["C"])
        )
        last, outputs = scan_tokens(update, state.float(), tokens)
        outputs = outputs.permute(1, 2, 0)
        if arguments["D"] is not None:
            outputs = outputs + arguments["D"][:, None] * x
        if arguments["z"] is not None:
            outputs = outputs * F.silu(arguments["z"])
        return (outputs, last.to(state.dtype)) if arguments["return_last_state"] else outputs

    return replacement


def _linear_recurrence(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return RecurrentGemma's ``h ← gate h + x`` as a scan."""
    del original

    def rnn_scan(
        self: Any,
        hidden_states: torch.Tensor,
        recurrent_gate: torch.Tensor,
        reset: torch.Tensor,
        recurrent_states: torch.Tensor | None,
        acc_dtype: torch.dtype = torch.float32,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        del self
        x, gate = hidden_states.to(acc_dtype), (recurrent_gate * ~reset).to(acc_dtype)
        state = torch.zeros_like(x[:, 0]) if recurrent_states is None else recurrent_states

        def update(state: torch.Tensor, token: Any) -> tuple[torch.Tensor, torch.Tensor]:
            x, gate = token
            state = gate * state + x
            # A scan of torch refuses a body that returns one tensor twice.
            return state, state.clone()

        last, states = scan_tokens(update, state, (x.transpose(0, 1), gate.transpose(0, 1)))
        return states.transpose(0, 1).to(hidden_states.dtype), last

    return rnn_scan


def _wkv(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return RWKV's attention as two scans: of the largest exponents, and of the sums.

    For each token ``(n + exp(first + k) v) / (d + exp(first + k))``, then ``n ← exp(-decay) n +
    exp(k) v`` and ``d`` likewise. Both are stored with the factor ``exp(-m)``, where ``m`` is their
    largest exponent. Neither scan has more than two operations a step.
    """
    if not _is_of_transformers(original):
        return original

    signature = inspect.signature(original)

    def attention(*args: Any, **kwargs: Any) -> Any:
        arguments = arguments_by_name(signature, args, kwargs)
        time_decay, time_first, key, value, state, return_state = arguments.values()
        decay = -torch.exp(time_decay)

        def largest_exponent(m: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            # A scan of torch refuses a body that returns its argument.
            return torch.maximum(m + decay, k), m.clone()

        def sums(before: torch.Tensor, token: Any) -> tuple[torch.Tensor, torch.Tensor]:
            rate, added = token
            return rate * before + added, before.clone()

        k, v = (x.float().transpose(0, 1) for x in (key, value))
        zeros = torch.zeros_like(k[0])
        n, d, m = (zeros, zeros, zeros - _NEVER) if state is None else state
        last_m, m = scan_tokens(largest_exponent, m.contiguous(), k)
        # No exponential of a difference to the largest exponent overflows.
        after = torch.maximum(m + decay, k)
        rate, new = torch.exp(m + decay - after)[..., None], torch.exp(k - after)
        added = torch.stack((new * v, new), -1)
        last, before = scan_tokens(sums, torch.stack((n, d), -1), (rate, added))
        largest = torch.maximum(m, k + time_first)
        old, new = torch.exp(m - largest)[..., None] * before, torch.exp(k + time_first - largest)
        outputs = (old[..., 0] + new * v) / (old[..., 1] + new)
        states = [*last.unbind(-1), last_m] if return_state or state is not None else None
        return outputs.transpose(0, 1).to(key.dtype), states

    return attention
