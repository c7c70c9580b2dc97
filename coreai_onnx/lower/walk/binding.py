"""Binds the arguments of an FX node to its schema, and reads which results are used."""

from __future__ import annotations

import functools
import inspect
import keyword
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from coreai_onnx.export.compat.torch_names import OpOverload
from coreai_onnx.lower.nodes.values import as_dim

# Numbers of c10::ScalarType that schemas of aten have as defaults of dtypes.
_DTYPE_NUMBERS = {4: torch.int64, 6: torch.float32, 24: torch.float8_e4m3fn}


def bind_arguments(
    node: fx.Node, value_of: Callable[[fx.Node], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments of a node.

    Every parameter of the schema is present, with its default if the node does not pass it. FX
    nodes are replaced by their values.

    Args:
        node: A call of an ``OpOverload``.
        value_of: Returns the value of a node that has been lowered.
    """
    schema = node.target._schema  # type: ignore[union-attr]  # the caller checked the target
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for index, parameter in enumerate(schema.arguments):
        if index < len(node.args) and not parameter.kwarg_only:
            argument = node.args[index]
        elif parameter.name in node.kwargs:
            argument = node.kwargs[parameter.name]
        else:
            argument = _default(parameter)
        argument = resolve(argument, value_of)
        if parameter.kwarg_only:
            keywords[parameter.name] = argument
        else:
            positional.append(argument)
    return positional, keywords


def declared_arguments(
    lowering: Callable[..., Any], target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return those arguments of an op that its lowering declares, positional and keyword ones.

    A lowering declares the parameters that it reads, by name and in any order. One for several
    ops may declare parameters that only some of them have; the others take their defaults. One
    with ``*args`` takes all arguments.

    Args:
        lowering: A function of a builder and arguments.
        target: The op.
        args: Positional arguments in the order of the schema.
        kwargs: Keyword arguments.
    """
    parameters = _parameters(lowering)
    if parameters is None:
        return list(args), dict(kwargs)
    names = (p.name for p in target._schema.arguments if not p.kwarg_only)
    arguments = {**dict(zip(names, args, strict=True)), **kwargs}
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    by_name = False
    for name, is_keyword in parameters:
        is_present = schema_name(name) in arguments
        # After a parameter that is skipped, a position would mean another parameter.
        by_name = by_name or is_keyword or not is_present
        if is_present and by_name:
            keywords[name] = arguments[schema_name(name)]
        elif is_present:
            positional.append(arguments[schema_name(name)])
    return positional, keywords


@functools.cache
def _parameters(lowering: Callable[..., Any]) -> list[tuple[str, bool]] | None:
    """Return the parameters after the builder, and which are keyword-only; None for ``*args``."""
    _builder, *parameters = inspect.signature(lowering).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return None
    return [(p.name, p.kind is inspect.Parameter.KEYWORD_ONLY) for p in parameters]


def schema_name(parameter: str) -> str:
    """Return the name in the schema of a parameter in Python: ``from`` for ``from_``."""
    name = parameter.removesuffix("_")
    return name if keyword.iskeyword(name) else parameter


def _default(parameter: Any) -> Any:
    """Return a parameter's default; schemas represent a default dtype as a number."""
    if not parameter.has_default_value():
        return None
    value = parameter.default_value
    # Only for dtypes: 4 and 6 are also defaults of ordinary integers.
    return _DTYPE_NUMBERS.get(value, value) if parameter.name.endswith("dtype") else value


def bind_by_name(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return those arguments of a torch op that a Python function accepts, by parameter name.

    Positional arguments are matched by position, keyword-only ones by name. Arguments that the
    function does not have are dropped, and so is None for a parameter with a default.
    """
    parameters = inspect.signature(function).parameters
    arguments = dict(zip(parameters, args, strict=False)) | {
        k: v for k, v in kwargs.items() if k in parameters
    }
    # torch passes None for an absent argument, where the function may have another default.
    has_default = {k: p.default is not inspect.Parameter.empty for k, p in parameters.items()}
    return {k: v for k, v in arguments.items() if v is not None or not has_default[k]}


def resolve(argument: Any, value_of: Callable[[fx.Node], Any]) -> Any:
    """Replace FX nodes in an argument by their values, in lists and tuples too."""
    if isinstance(argument, fx.Node):
        return value_of(argument)
    if isinstance(argument, list | tuple):
        return [resolve(a, value_of) for a in argument]
    if isinstance(argument, dict):
        return {k: resolve(a, value_of) for k, a in argument.items()}
    if isinstance(argument, torch.SymInt):
        return as_dim(argument)
    return argument


def only_first_used(node: fx.Node) -> bool:
    """Whether only the first of several results is used."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return True
    # Exported graphs keep the getitem nodes of results that nothing reads.
    read = (u for u in node.users if u.users or u.target is not operator.getitem)
    return all(u.target is operator.getitem and u.args[1] == 0 for u in read)


def read_results(node: fx.Node) -> Any:
    """Return a node's example result, with None for those of several that nothing reads."""
    value = node.meta.get("val")
    if not isinstance(value, list | tuple):
        return value
    read = {u.args[1] for u in node.users if u.target is operator.getitem and u.users}
    return [each if index in read else None for index, each in enumerate(value)]


def is_number_for_tensor(target: OpOverload, args: Sequence[Any]) -> bool:
    """Whether an op on tensors has only a number, which traces pass for a 0-d tensor."""
    if not args or not isinstance(args[0], int | float):
        return False
    is_tensor = isinstance(target._schema.arguments[0].type, torch.TensorType)
    return is_tensor and not any(isinstance(a, ir.Value) for a in args)


def signature_of(leaf: Any) -> Any:
    """Return the properties of one argument on which a decomposition depends."""
    if not isinstance(leaf, fx.Node):
        # With the type, since 1, 1.0 and True are equal and may decompose differently.
        return (type(leaf).__name__, str(leaf))
    value = leaf.meta.get("val")
    if isinstance(value, torch.Tensor):
        # Rules branch on the memory format. Sizes are text: `==` of two SymInts would add a guard.
        strides = tuple(str(s) for s in value.stride()) if value.layout == torch.strided else ()
        return (value.dtype, tuple(str(d) for d in value.shape), strides)
    return ("symbol", str(value))
