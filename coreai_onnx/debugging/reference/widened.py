"""Eager torch with a result in float64 beside each of its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from coreai_onnx.debugging.reference.control_flow import RUNS, draws
from coreai_onnx.export.compat.dynamo import skips_forgotten
from coreai_onnx.export.compat.torch_names import (
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
    pytree,
)

WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
"""The dtypes that are widened, and what to."""


def widened(tensor: torch.Tensor, *, copy: bool = False) -> torch.Tensor:
    """Return a tensor in float64 or complex128; one that is not floating as it is."""
    return tensor.to(WIDE.get(tensor.dtype, tensor.dtype), copy=copy)


def is_floating(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is real or complex."""
    return tensor.is_floating_point() or tensor.is_complex()


class Widened(TorchDispatchMode):
    """While active, computes every operator in float64 too, from the float64 results before it.

    An integer or boolean result is torch's own for the operators after it, so that both executions
    make the same choices. An operator without float64, or that draws random numbers, is taken to
    be exact.

    Attributes:
        random: The operators that drew random numbers, in order.
    """

    # Otherwise torch refuses cond and while_loop while the mode is active.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        """Start without results."""
        super().__init__()
        self.random: dict[str, None] = {}
        # By identity, because == compares elements, and without keeping the tensors alive.
        self._ideals: Any = WeakTensorKeyDictionary()

    def __exit__(self, *exception: object) -> None:
        """Stop; branches and loops can be exported afterwards."""
        super().__exit__(*exception)
        skips_forgotten()

    def ideal(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the float64 result of a tensor; itself in float64 if no operator made it."""
        ideal = self._ideals.get(tensor)
        return widened(tensor) if ideal is None else ideal

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor whose float64 result is that of the tensor now."""
        copied = tensor.clone()
        self._ideals[copied] = self.ideal(tensor).clone()
        return copied

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, and in float64 too."""
        del types
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return self._higher_order(func, args, kwargs)
        written = [x for x in _written(func, args, kwargs) if isinstance(x, torch.Tensor)]
        if draws(func, args, kwargs):
            self.random[str(func)] = None
            exact = True
        else:
            tensors = [x for x in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(x)]
            exact = not any(map(is_floating, tensors)) or not all(map(is_floating, written))
        # Before the operator runs: one that works in place overwrites its arguments.
        wide_args = None if exact else pytree.tree_map(self._argument, (args, kwargs))
        result = func(*args, **kwargs)
        wide = None if wide_args is None else _result(func, *wide_args)
        if wide is None:
            # What was written has no float64 result, and the former one is out of date.
            for tensor in written:
                self._ideals.pop(tensor, None)
        else:
            self._keep(result, wide)
        return result

    def _higher_order(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run control flow, whose operators are computed in float64 too; others are exact."""
        run = RUNS.get(str(func))
        if run is None:
            return func(*args, **kwargs)
        # torch deactivates a mode while it handles an operator.
        with self:
            return run(lambda graph, operands, _: graph(*operands), *args, **kwargs)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return WIDE.get(value, value)
        if not isinstance(value, torch.Tensor) or not is_floating(value):
            return value
        ideal = self._ideals.get(value)
        if ideal is None:
            # A copy also of float64: an operator in place would change the tensor of the module.
            ideal = widened(value.detach(), copy=True)
            if not isinstance(value, torch.nn.Parameter):  # no forward changes these
                self._ideals[value] = ideal
        return ideal

    def _keep(self, own: Any, wide: Any) -> None:
        pairs = zip(pytree.tree_leaves(own), pytree.tree_leaves(wide), strict=False)
        for tensor, ideal in pairs:
            if torch.is_tensor(tensor) and torch.is_tensor(ideal) and tensor.shape == ideal.shape:
                self._ideals[tensor] = ideal


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the arguments that an operator writes to."""
    if not isinstance(func, OpOverload) or not func._schema.is_mutable:
        return
    bound = {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **kwargs}
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from pytree.tree_leaves(bound.get(argument.name))


def _result(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the result in float64, or None if the operator does not support it."""
    try:
        return func(*args, **kwargs)
    except Exception:  # noqa: BLE001 - operators may raise anything
        return None
