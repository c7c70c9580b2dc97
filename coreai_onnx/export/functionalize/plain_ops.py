"""Maps in-place ops to the out-of-place ops that return a new tensor."""

from __future__ import annotations

import functools
from typing import Any

import torch

from coreai_onnx.export.compat.torch_names import OpOverload

aten = torch.ops.aten
_NAMES = {"normal_": ("normal_functional", "default"), "transpose_": ("transpose", "int")}
"""Ops whose name or overload is not that of the in-place op without its underscore."""


@functools.cache
def plain_form(target: Any) -> OpOverload | None:
    """Return the out-of-place op with the arguments of an in-place op, or None.

    Its overload may have another name: ``pow_.Scalar`` becomes ``pow.Tensor_Scalar``, because the
    first argument of ``pow.Scalar`` is a number.
    """
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return None
    name, overload = target._schema.name.partition("::")[2], target._schema.overload_name
    written = [a.alias_info is not None and a.alias_info.is_write for a in target._schema.arguments]
    if not name.endswith("_") or sum(written) != 1 or not written[0]:
        return None
    same_name = f"__{name[3:]}" if name.startswith("__i") else name[:-1]
    plain, wanted = _NAMES.get(name, (same_name, overload or "default"))
    packet = getattr(aten, plain, None)
    if packet is None:
        return None
    overloads = sorted(packet.overloads(), key=lambda other: other != wanted)
    found = (getattr(packet, other) for other in overloads)
    return next((op for op in found if _takes_the_same(op, target)), None)


def _takes_the_same(plain: OpOverload, in_place: OpOverload) -> bool:
    """Whether the arguments and defaults of an in-place op have the same meaning in another op."""
    if plain._schema.is_mutable or not plain._schema.arguments:
        return False
    first, second = _parameters(plain), _parameters(in_place)
    return first[0][1:] == second[0][1:] and first[1:] == second[1:]


def _parameters(op: OpOverload) -> list[tuple[str, str, Any]]:
    """Return the name, type and default of each parameter."""
    return [(a.name, str(a.type), a.default_value) for a in op._schema.arguments]
