"""Recurrent layers that are exported as one op, so that the sequence length may be dynamic.

torch infers the shapes of an LSTM's results only by unrolling it, step by step, for one length.
Here ``lstm``, ``gru`` and the plain ``rnn`` are ops with their own shape functions.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import _VF  # the functions behind the layers of torch.nn

from coreai_onnx.export.compat.patches import patched
from coreai_onnx.export.compat.torch_warnings import ignored
from coreai_onnx.model.dependencies import FLAT_WEIGHTS

NAMESPACE = "coreai_recurrent"
LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_OPTIONS = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first"
)
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
_ORIGINAL: dict[str, Callable[..., Any]] = {
    name: getattr(_VF, name) for name in LAYERS if hasattr(_VF, name)
}
"""torch's own functions; layers whose function the installed torch lacks are unrolled."""


@contextmanager
def recurrent_layers_as_ops() -> Iterator[None]:
    """While active, recurrent layers of ``torch.nn`` are exported as one op each.

    ```python
    with recurrent_layers_as_ops():
        exported = torch.export.export(model, args, dynamic_shapes=dims)
    ```

    Packed sequences and layers with projections are exported as torch does it.
    """
    with ExitStack() as patches:
        for name in _ORIGINAL:
            patches.enter_context(patched(_VF, name, functools.partial(_replacement, name)))
        # the layers rebuild their list of weights when export replaces these by fake tensors
        patches.enter_context(ignored(FLAT_WEIGHTS.pattern.pattern))
        yield


def whole() -> AbstractContextManager[None]:
    """Deprecated name of `recurrent_layers_as_ops`."""
    warnings.warn("use recurrent_layers_as_ops", DeprecationWarning, stacklevel=2)
    return recurrent_layers_as_ops()


def _replacement(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    op = getattr(getattr(torch.ops, NAMESPACE), name).default

    def call(*args: Any) -> Any:
        # For packed sequences, argument 3 is the list of weights, which here is argument 2.
        packed = len(args) != 9 or isinstance(args[3], torch.Tensor | list | tuple)
        if packed or (name == "lstm" and _has_projections(args)):
            return original(*args)
        return op(*args)

    return call


def _has_projections(args: Sequence[Any]) -> bool:
    """Whether the hidden state is narrower than the cell state."""
    return bool(args[1][0].shape[-1] != args[1][1].shape[-1])


def _outputs(
    input: torch.Tensor, states: Sequence[torch.Tensor], options: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    """Return empty tensors with the results' shapes: all hidden states, and the last states."""
    bidirectional = options[5]
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    every = input.new_empty((*input.shape[:-1], width))
    return (every, *(input.new_empty(state.shape) for state in states))


def _define(name: str) -> None:
    """Define an op with the schema of ``aten::<name>.input``."""
    several = name == "lstm"
    state, results = (
        ("Tensor[]", "Tensor, Tensor, Tensor") if several else ("Tensor", "Tensor, Tensor")
    )
    _LIBRARY.define(f"{name}(Tensor input, {state} hx, {_OPTIONS}) -> ({results})")

    def compute(input: torch.Tensor, hx: Any, *options: Any) -> Any:
        return _ORIGINAL[name](input, hx, *options)

    def shapes(input: torch.Tensor, hx: Any, *options: Any) -> Any:
        return _outputs(input, hx if several else [hx], options)

    _LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", shapes, lib=_LIBRARY)


for _name in _ORIGINAL:
    _define(_name)
