"""The registry of lowerings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import onnx_ir as ir

from coreai_onnx.errors import RegistrationError

Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)


@runtime_checkable
class CallsFunctions(Protocol):
    """A lowering whose nodes call functions, which the model must contain."""

    def functions_at(self, opset: int) -> list[ir.Function]:
        """Return the functions for a model of an opset."""
        ...


_REAL: dict[str, Lowering] = {}
_COMPLEX: dict[str, Lowering] = {}
_HIGHER_ORDER: dict[str, Lowering] = {}
_WHOLE: set[str] = set()


def lowers(
    *names: str,
    complex: bool = False,
    whole: bool = False,
    renamed: Mapping[str, str] | None = None,
    **fixed: Any,
) -> Callable[[F], F]:
    """Register a function as the lowering of ops (``"aten.add.Tensor"``).

    Args:
        *names: Qualified op names with overload.
        complex: Whether it lowers calls with complex tensors, which are represented as real values
            with a trailing axis of 2.
        whole: Whether the lowering is better than that of torch's decomposition, which
            ``get_decomp_table`` then omits.
        renamed: For parameters with another name in the schema of these ops, that name.
        **fixed: Values for these ops of keyword-only parameters that are not in their schema.

    A lowering that does not support a call may return ``NotImplemented``; the call is then
    decomposed.

    Raises:
        RegistrationError: If an op already has a lowering.
    """
    register = _registers(_COMPLEX if complex else _REAL, names, whole=whole)

    def decorate(function: F) -> F:
        register(_variant(function, renamed or {}, fixed))
        return function

    return decorate


def _variant(function: Lowering, renamed: Mapping[str, str], fixed: Mapping[str, Any]) -> Lowering:
    """Return a lowering whose signature has other names, and lacks the fixed parameters."""
    if not renamed and not fixed:
        return function
    parameter_of = {name: parameter for parameter, name in renamed.items()}

    @functools.wraps(function)
    def lowering(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{parameter_of.get(k, k): v for k, v in kwargs.items()}, **fixed)

    signature = inspect.signature(function)
    parameters = [
        parameter.replace(name=renamed.get(name, name))
        for name, parameter in signature.parameters.items()
        if name not in fixed
    ]
    # What inspect.signature returns, and what tests/lower/test_signatures.py reads.
    lowering.__dict__.update(__signature__=signature.replace(parameters=parameters), fixed={*fixed})
    return lowering


def lowers_higher_order(*names: str) -> Callable[[F], F]:
    """Register a function of a walker and an FX node as the lowering of higher-order ops.

    Args:
        *names: Names of the ops (``"cond"``).

    Raises:
        RegistrationError: If an op already has a lowering.
    """
    return _registers(_HIGHER_ORDER, names)


def _registers(
    table: dict[str, Lowering], names: tuple[str, ...], *, whole: bool = False
) -> Callable[[F], F]:
    def register(function: F) -> F:
        for name in names:
            # Otherwise the order of imports would decide which lowering is used.
            if name in table:
                raise RegistrationError(
                    f"{name} already has a lowering: {table[name].__qualname__} "
                    f"in {table[name].__module__}"
                )
            table[name] = function
        _WHOLE.update(names if whole else ())
        return function

    return register


def higher_order_lowering(name: str) -> Lowering | None:
    """Return the lowering of a higher-order op, or None."""
    return _HIGHER_ORDER.get(name)


def builtin_lowering(name: str, *, complex: bool = False) -> Lowering | None:
    """Return the lowering of an op, or None."""
    return (_COMPLEX if complex else _REAL).get(name)


def builtin_names(*, complex: bool = False) -> tuple[str, ...]:
    """Return the names of all ops with a lowering, sorted."""
    return tuple(sorted(_COMPLEX if complex else _REAL))


def is_whole(name: str) -> bool:
    """Whether an op is lowered as it is instead of being decomposed first."""
    return name in _WHOLE
