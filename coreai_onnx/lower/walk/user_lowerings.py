"""Lowerings that the user registers: their names, their form, and the results of their calls."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import sympy
import torch

from coreai_onnx.errors import LoweringError, RegistrationError, Where
from coreai_onnx.export.compat.torch_names import OpOverload, OpOverloadPacket
from coreai_onnx.lower.nodes.values import ir_dtype, real_part
from coreai_onnx.lower.walk.registry import Lowering

ADVICE = "correct the lowering that is registered for it"


def registered_name(name: Any) -> str:
    """Return the name of an op by which the converter finds its lowering, ``aten.relu.default``.

    Args:
        name: ``"namespace::op.overload"``, or the op itself (``torch.ops.aten.relu.default``).

    Raises:
        RegistrationError: If the name is malformed, has no overload, or the op lacks the overload.
    """
    if isinstance(name, OpOverload):
        return str(name)
    space, _, rest = name.partition("::") if isinstance(name, str) else ("", "", "")
    op, *overload = rest.split(".")
    if len(overload) > 1 or not all(part.isidentifier() for part in (space, op, *overload)):
        raise RegistrationError(
            f"{name!r} is not of the form namespace::op.overload "
            '(for instance "my_lib::my_op.default")'
        )
    overloads = _overloads(space, op)
    if not overload or (overloads and overload[0] not in overloads):
        names = " or ".join(f'"{space}::{op}.{each}"' for each in overloads[:3] or ["default"])
        fault = f"names no overload that {op} has" if overload else "names no overload"
        raise RegistrationError(f"{name!r} {fault} (namespace::op.overload): use {names}")
    return f"{space}.{rest}"


def _overloads(space: str, op: str) -> list[str]:
    """Return the overloads of an op; an op that is not defined yet has none."""
    packet = getattr(getattr(torch.ops, space), op, None)
    names = packet.overloads() if isinstance(packet, OpOverloadPacket) else []
    # Exported programs have no calls of overloads with out.
    return [name for name in names if not name.endswith("out")]


def check_form(function: Any) -> None:
    """Check that a lowering is a function of this package's form.

    Raises:
        RegistrationError: If it is not callable, or is written as coreai-torch's.
    """
    if not callable(function):
        raise RegistrationError(f"a lowering is a function fn(op, x, ...), not {function!r}")
    parameters = list(inspect.signature(function).parameters)
    if parameters[:1] == ["values_map"] or (len(parameters) == 3 and parameters[1:] == _CALLBACK):
        raise RegistrationError(
            f"{getattr(function, '__name__', 'the lowering')} has coreai-torch's form "
            "(values_map, node, loc): write fn(op, x, ...) with the parameters of the op's "
            "schema; x is what values_map[node.args[0].name] was, op.Add(x, y) makes a node"
        )


_CALLBACK = ["node", "loc"]


def call_lowering(
    lowering: Lowering,
    name: str,
    call: tuple[Any, Sequence[Any], Mapping[str, Any]],
    expected: Any,
    where: Where | None,
) -> Any:
    """Call a registered lowering, and check that its results are those of the op.

    Args:
        lowering: The lowering.
        name: The op.
        call: The builder, and the arguments by position and by keyword.
        expected: The results in the exported program: a tensor, or a list of them, in which None
            stands for one that nothing reads.
        where: The place in the user's model.

    Raises:
        LoweringError: If the lowering does not take the arguments, or returns something else.
    """
    op, args, kwargs = call
    try:
        inspect.signature(lowering).bind(op, *args, **kwargs)
    except TypeError as error:
        raise LoweringError(
            f"{name}: the lowering that is registered for it does not take its arguments: {error}",
            where,
            "its parameters are op and those of the schema, " + _schema_of(name),
        ) from error
    result = lowering(op, *args, **kwargs)
    if result is NotImplemented:  # the walker decomposes the op
        return result
    is_many = isinstance(expected, list | tuple)
    if is_many and not isinstance(result, list | tuple):
        _refuse(name, f"a {_kind(result)} for {len(expected)} results", where)
    if is_many and len(result) != len(expected):
        _refuse(name, f"{_count(result)} for {len(expected)} results", where)
    pairs = zip(result, expected, strict=True) if is_many else [(result, expected)]
    for index, (value, sample) in enumerate(pairs):
        if isinstance(sample, torch.Tensor):
            label = f"result {index}" if is_many else "its result"
            _check_one(name, label, value, sample, where)
    return result


def _check_one(
    name: str, label: str, value: Any, wanted: torch.Tensor, where: Where | None
) -> None:
    # The walker turns numbers into 0-d values.
    if isinstance(value, bool | int | float | sympy.Basic) and not wanted.dim():
        return
    if not isinstance(value, ir.Value):
        more = ": op.const(...) makes a value" if isinstance(value, _CONSTANTS) else ""
        _refuse(name, f"a {_kind(value)} for {label}{more}", where)
    dtype = ir_dtype(real_part(wanted.dtype))
    # A node of another domain may leave the dtype open; the walker then sets the expected one.
    if value.dtype not in (None, dtype):
        _refuse(name, f"{value.dtype} for {label}, which is {dtype}: use op.Cast", where)


_CONSTANTS = (bool, int, float, np.ndarray, np.generic, torch.Tensor)


def _count(values: Sequence[Any]) -> str:
    return "1 value" if len(values) == 1 else f"{len(values)} values"


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _refuse(name: str, what: str, where: Where | None) -> None:
    what = what.removeprefix("a ") if what.startswith("a None") else what
    raise LoweringError(f"{name}: its registered lowering returned {what}", where, ADVICE)


def _schema_of(name: str) -> str:
    space, op, overload = name.split(".")
    return str(getattr(getattr(getattr(torch.ops, space), op), overload)._schema)
