"""Maps in-place ops to the out-of-place ops that return a new tensor."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from coreai_onnx.export.compat.torch_names import OpOverload

aten = torch.ops.aten
_NAMES = {"normal_": ("normal_functional", "default"), "transpose_": ("transpose", "int")}
"""Ops whose name or overload is not that of the in-place op without its underscore."""


@functools.cache
def plain_form(target: Any) -> OpOverload | None:
    """Return the out-of-place op with the arguments of an in-place op, or None.

    An op that writes to ``out`` is in-place too. The order and the defaults of the arguments may
    differ (see ``plain_arguments``). The overload may have another name: ``pow_.Scalar`` becomes
    ``pow.Tensor_Scalar``, because the first argument of ``pow.Scalar`` is a number.
    """
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return None
    name, overload = target._schema.name.partition("::")[2], target._schema.overload_name
    changed = _written_argument(target)
    if changed is None or not (changed.is_out or name.endswith("_")):
        return None
    if changed.is_out:
        plain, same_overload = name, ""
    else:
        # __iand__ is the in-place form of __and__, and add_ that of add.
        same_name = f"__{name[3:]}" if name.startswith("__i") else name[:-1]
        plain, same_overload = _NAMES.get(name, (same_name, overload or "default"))
    packet = getattr(aten, plain, None)
    if packet is None:
        return None
    overloads = sorted(packet.overloads(), key=lambda other: other != same_overload)
    candidates = (getattr(packet, other) for other in overloads)
    return next((op for op in candidates if _takes_the_same(op, target)), None)


def changed_tensor(node: fx.Node) -> fx.Node | None:
    """Return the tensor that a call writes to; None if there are several."""
    argument = _written_argument(node.target)  # type: ignore[arg-type]  # an op
    if argument is None:
        return None
    changed = node.kwargs.get(argument.name) if argument.is_out else next(iter(node.args), None)
    return changed if isinstance(changed, fx.Node) else None


def keeps_the_dtype(node: fx.Node) -> bool:
    """Whether the out-of-place op is known to return the dtype and shape of the changed tensor."""
    if node.args[:1] != (changed_tensor(node),):
        return False
    values: Any = fx.map_arg(node.args, lambda n: n.meta.get("val"))
    target, *others = values
    tensors = (x for x in others if isinstance(x, torch.Tensor))
    # Integers times a float are floats in a new tensor, and stay integers in place.
    numbers = (x for x in others if isinstance(x, float | torch.SymFloat | complex))
    return all(x.dtype == target.dtype for x in tensors) and not any(numbers)


def _written_argument(op: OpOverload) -> Any:
    """Return the argument that an op writes to: the first one, or ``out``; None if it has others.

    The argument is that of the op's schema.
    """
    arguments = op._schema.arguments
    written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    if len(written) != 1 or not (written[0].is_out or written[0].name == arguments[0].name):
        return None
    return written[0]


def plain_arguments(
    plain: OpOverload, in_place: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call of an in-place op, for the op that is its plain form.

    They differ where the order or the defaults of the parameters do: ``polygamma_(self, n)`` and
    ``polygamma(n, self)``, ``bernoulli_(self, p=0.5)`` and ``bernoulli(self, p)``.
    """
    first, second = _parameters(plain), _parameters(in_place)
    if first[1:] == second[1:]:
        return tuple(args), dict(kwargs)
    values = {name: default for name, _, default in second}
    values |= {**dict(zip(values, args, strict=False)), **kwargs}
    changed = values.pop(_written_argument(in_place).name)
    named = {name: values.get(name, changed) for name, *_ in first}
    positional = [a.name for a in plain._schema.arguments if not a.kwarg_only]
    return tuple(named.pop(name) for name in positional), named


def _takes_the_same(plain: OpOverload, in_place: OpOverload) -> bool:
    """Whether the parameters of an in-place op have the same names and types in another op.

    The parameter that is changed may have another name.
    """
    if plain._schema.is_mutable or not plain._schema.arguments:
        return False
    changed = _written_argument(in_place)
    rest = {(name, type_) for name, type_, _ in _parameters(in_place) if name != changed.name}
    first = [(name, type_) for name, type_, _ in _parameters(plain)]
    left = [type_ for name, type_ in first if (name, type_) not in rest]
    return left == ([] if changed.is_out else [str(changed.type)]) and len(first) - len(
        left
    ) == len(rest)


def _parameters(op: OpOverload) -> list[tuple[str, str, Any]]:
    """Return the name, type and default of each parameter."""
    return [(a.name, str(a.type), a.default_value) for a in op._schema.arguments]
