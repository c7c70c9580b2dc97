"""Wraps what a user wants to convert in a module that ``torch.export`` accepts."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.jit import ScriptModule, TracedModule  # type: ignore[attr-defined]

from coreai_onnx.errors import StagingError
from coreai_onnx.export.compat.dynamo import uncompiled
from coreai_onnx.export.compat.torch_names import FakeTensor

_SHOWN = 3
_TAKES = "give a torch.nn.Module, a function of tensors or a torch.export.ExportedProgram"


class FunctionModule(torch.nn.Module):
    """A function as a module; the modules that it calls are its children.

    The modules are found in variables of an enclosing function, in globals that the function
    reads, in the arguments of a ``functools.partial``, and in the object of a bound method.

    Args:
        function: Its arguments and results are of types that ``torch.export`` supports.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        for name, module in _modules_of(function):
            taken = hasattr(self, name) or not name.isidentifier()
            self.add_module(f"{name}_" if taken else name, module)
        self.forward = _with_signature(function)


def as_module(subject: Any) -> torch.nn.Module:
    """Return a module that computes what the user gave.

    Args:
        subject: A module; a result of ``torch.compile``, whose original is used; a function,
            lambda, ``functools.partial`` or bound method; a traced module.

    Raises:
        StagingError: If it is something else, or its weights have no values.
    """
    module = _as_module(subject)
    scripted = [path for path, child in module.named_modules() if _is_scripted(child)]
    if scripted:
        raise StagingError(
            f"{scripted[0] or 'the model'} is a module of torch.jit.script, which torch.export "
            "does not support\n  pass the torch.nn.Module that it was made from"
        )
    refuse_without_values({**dict(module.named_parameters()), **dict(module.named_buffers())})
    return module


def refuse_without_values(tensors: Mapping[str, Any]) -> None:
    """Reject weights that have a shape but no values.

    Raises:
        StagingError: If weights are on the meta device or were created in a ``FakeTensorMode``; the
            message names them.
    """
    empty = [name for name, x in tensors.items() if isinstance(x, torch.Tensor) and _is_empty(x)]
    if empty:
        more = f" and {len(empty) - _SHOWN} more" if len(empty) > _SHOWN else ""
        raise StagingError(
            f"weights without values (on the meta device, or fake): "
            f"{', '.join(empty[:_SHOWN])}{more}\n"
            "  load them before the conversion: model.load_state_dict(weights, assign=True)"
        )


def _as_module(subject: Any) -> torch.nn.Module:
    if isinstance(subject, type):
        raise StagingError(
            f"{subject.__name__} is a class\n  give an instance of it: {subject.__name__}(...)"
        )
    if isinstance(subject, ExportedProgram):
        raise StagingError(
            "an ExportedProgram is exported already\n"
            "  give it to convert() or to TorchConverter.add_exported_program()"
        )
    subject = uncompiled(subject)
    # Its class has no forward in Python, whose signature torch.export reads.
    if isinstance(subject, TracedModule):
        return FunctionModule(subject)
    if isinstance(subject, torch.nn.Module):
        return subject
    if callable(subject):
        return FunctionModule(subject)
    raise StagingError(f"a {type(subject).__name__} cannot be converted\n  {_advice(subject)}")


def _advice(subject: Any) -> str:
    if isinstance(subject, str | bytes) or hasattr(subject, "__fspath__"):
        return f"load it first (torch.export.load for a .pt2 file), then {_TAKES}"
    if isinstance(subject, Mapping):
        return f"load weights into a module first (load_state_dict), then {_TAKES}"
    return _TAKES


def _is_scripted(module: torch.nn.Module) -> bool:
    return isinstance(module, ScriptModule) and not isinstance(module, TracedModule)


def _is_empty(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def _with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, or a Python wrapper: torch.export reads the code of a forward."""
    if isinstance(function, types.FunctionType | types.MethodType):
        return function

    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    vars(forward)["__signature__"] = _signature(function) or inspect.signature(forward)
    return forward


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function that may be traced or written in C; None if unknown."""
    schema = getattr(getattr(function, "forward", function), "schema", None)
    if schema is not None:  # of torch.jit
        names = [argument.name for argument in schema.arguments if argument.name != "self"]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in names])
    try:
        return inspect.signature(function)
    except ValueError:
        return None


def _modules_of(function: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules that a function refers to, with their names in the function."""
    if isinstance(function, torch.nn.Module):
        yield "module", function
    elif isinstance(function, functools.partial):
        yield from _modules_of(function.func)
        yield from _modules_in({f"arg{i}": x for i, x in enumerate(function.args)})
        yield from _modules_in(function.keywords)
    elif isinstance(function, types.MethodType):
        yield from _modules_of_object(function.__self__)
    elif isinstance(function, types.FunctionType):
        # The wrapper that a decorator returns does not refer to the modules itself.
        variables = inspect.getclosurevars(inspect.unwrap(function))
        yield from _modules_in({**variables.globals, **variables.nonlocals})
    elif not isinstance(function, types.BuiltinFunctionType):
        yield from _modules_of_object(function)


def _modules_of_object(value: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    if isinstance(value, torch.nn.Module):
        yield "module", value
    elif hasattr(value, "__dict__"):
        yield from _modules_in(vars(value))


def _modules_in(named: Mapping[str, Any]) -> Iterable[tuple[str, torch.nn.Module]]:
    return [(name, x) for name, x in named.items() if isinstance(x, torch.nn.Module)]
