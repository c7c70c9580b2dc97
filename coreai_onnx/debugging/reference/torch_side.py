"""The torch module as the reference: inputs in the form of a session, outputs as arrays."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Mapping, Sequence

import torch
from torch.export import ExportedProgram

from coreai_onnx.debugging.difference import Array
from coreai_onnx.debugging.reference.widened import Widened
from coreai_onnx.errors import ComparisonError, InputError
from coreai_onnx.export.capture.arguments import as_arguments
from coreai_onnx.export.capture.subjects import as_module
from coreai_onnx.export.compat.torch_names import pytree
from coreai_onnx.model.interface import TensorInfo
from coreai_onnx.runtime.sessions.session import Session
from coreai_onnx.runtime.tensors.values import to_numpy


@dataclasses.dataclass(frozen=True)
class Arguments:
    """One call with both positional and keyword arguments."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object]


InputSet = torch.Tensor | Sequence[object] | Mapping[str, object] | Arguments
"""One call: positional arguments (a tuple), keyword arguments (a mapping), a lone tensor, or
`Arguments` for both kinds."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """The results of one eager call.

    Attributes:
        outputs: Leaves of the module's result; None and strings are left out, as in the model.
        states: Buffers after the call, and arguments that the call may have changed, by name.
        args: The positional arguments after the call.
        kwargs: The keyword arguments after the call.
        widened: Holds the float64 results, or None if they were not computed.
    """

    outputs: tuple[object, ...]
    states: Mapping[str, object]
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = dataclasses.field(default_factory=dict)
    widened: Widened | None = None

    def ideal(self, leaf: object) -> Array | None:
        """Return the float64 (complex128) result of a leaf, or None if it was not computed."""
        if self.widened is None or not isinstance(leaf, torch.Tensor):
            return None
        ideal: Array = self.widened.ideal(leaf).detach().resolve_conj().resolve_neg().numpy()
        return ideal


def arguments_of(inputs: InputSet) -> tuple[tuple[object, ...], dict[str, object]]:
    """Split one input set into positional and keyword arguments."""
    if isinstance(inputs, Arguments):
        return inputs.args, dict(inputs.kwargs)
    return as_arguments(inputs)


def reference_of(subject: object) -> torch.nn.Module:
    """Return the reference of a comparison as a module.

    Args:
        subject: A module, an ``ExportedProgram``, or another object that ``convert`` accepts.

    Raises:
        StagingError: If it is something else.
    """
    if isinstance(subject, ExportedProgram):
        return subject.module()
    return subject if isinstance(subject, torch.jit.ScriptModule) else as_module(subject)


def feeds_of(
    session: Session,
    module: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> dict[str, object]:
    """Return the leaves of a module's arguments by the names of the session's inputs.

    Keyword arguments with the name of an input are matched by name. The other leaves are matched to
    the other inputs in order. If their numbers differ (arguments that were constants at export,
    arguments that are states), leaves are first matched by parameter name.

    Raises:
        ComparisonError: If leaves and inputs do not match.
    """
    names = {info.name for info in session.inputs} | set(session.states)
    named = {name: value for name, value in kwargs.items() if name in names and _is_leaf(value)}
    rest = {
        name: value
        for name, value in by_parameter(module, args, kwargs).items()
        if name not in named
    }
    feeds = _in_order(session, named, rest)
    if feeds is None:
        by_name = {name: value for name, value in rest.items() if name in names and _is_leaf(value)}
        feeds = _in_order(
            session, named | by_name, {n: v for n, v in rest.items() if n not in by_name}
        )
    if feeds is None:
        leaves = ", ".join(
            f"{name} ({type(value).__name__})" for name, value in (named | rest).items()
        )
        expected = "\n".join(f"    {info}" for info in session.inputs) or "    nothing"
        raise ComparisonError(
            "the module's arguments do not match the model's inputs\n"
            f"  given {leaves}\n  inputs\n{expected}"
        )
    return feeds


def as_array(value: object, info: TensorInfo) -> Array:
    """Return a leaf of the module's result as an array; a Python number takes the output's dtype.

    Raises:
        ComparisonError: If it is neither a tensor nor a number.
    """
    try:
        return to_numpy(value, info)
    except InputError as error:
        raise ComparisonError(
            f"output {info.name!r}: the module returned a {type(value).__name__}"
        ) from error


def _in_order(
    session: Session, named: Mapping[str, object], rest: Mapping[str, object]
) -> dict[str, object] | None:
    """Match the remaining leaves to the inputs without a value, if their numbers are equal."""
    free = [info.name for info in session.inputs if info.name not in named]
    leaves = [leaf for value in rest.values() for leaf in leaves_of_result(value)]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    # Numbers and flags may be inputs of the model, or constants of the export.
    for candidates in (leaves, tensors):
        if len(candidates) == len(free):
            return {**named, **dict(zip(free, candidates, strict=True))}
    return None


def by_parameter(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Return arguments by parameter name, in the order of an export: keyword arguments last."""
    signature = inspect.signature(module.forward)
    bound = signature.bind(*args, **kwargs).arguments
    positional = {
        name: value
        for name, value in bound.items()
        if name not in kwargs and signature.parameters[name].kind is not _VAR_KEYWORD
    }
    return {**positional, **kwargs}


_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


def _is_leaf(value: object) -> bool:
    return isinstance(value, torch.Tensor | bool | int | float)


def leaves_of_result(value: object) -> list[object]:
    """Flatten tuples, lists, dicts, registered classes and dataclasses; None is left out."""
    leaves: list[object] = []
    for leaf in pytree.tree_leaves(value):
        # pytree takes apart only dataclasses that are registered with it.
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for entry in dataclasses.fields(leaf):
                leaves += leaves_of_result(getattr(leaf, entry.name))
        elif isinstance(leaf, Mapping):
            leaves += leaves_of_result(dict(leaf))
        elif leaf is not None:
            leaves.append(leaf)
    return leaves


def copied(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a module, also if it holds results of its last call in attributes.

    ``copy.deepcopy`` refuses tensors with a gradient function, such as the ``weight`` that the old
    ``torch.nn.utils.weight_norm`` computes.
    """
    held = (value for inner in module.modules() for value in vars(inner).values())
    computed = (x for x in held if isinstance(x, torch.Tensor) and not x.is_leaf)
    return copy.deepcopy(module, {id(x): x.detach().clone() for x in computed})
