"""Checks of exported programs that the user gives, and of the options given with them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from coreai_onnx.errors import AliasedInputsWarning, ExportError, StagingError
from coreai_onnx.export.capture.explain import outside
from coreai_onnx.export.capture.failures import DATA_ADVICE, refuse_derivatives
from coreai_onnx.export.capture.subjects import refuse_without_values
from coreai_onnx.export.compat.torch_names import FakeTensor, pytree


def check_program(program: Any) -> None:
    """Check that a program can be converted.

    Raises:
        StagingError: If it is not an ``ExportedProgram``, or its weights have no values.
        ExportError: If it contains what torch.export traces wrongly: ``torch.func.grad``, or
            under ``strict``, ``tensor.data``.

    Warns:
        AliasedInputsWarning: If it was exported with one tensor for several inputs.
    """
    if not isinstance(program, ExportedProgram):
        raise StagingError(
            f"a {type(program).__name__} is not a torch.export.ExportedProgram\n"
            "  convert a module with convert() or TorchConverter.add_pytorch_module()"
        )
    refuse_derivatives(program)
    _refuse_data_writes(program)
    refuse_without_values({**program.state_dict, **program.constants})
    for used, unused in _aliases(program):
        warnings.warn(
            f"the program was exported with one tensor as {used!r} and {unused!r}, so it reads "
            f"only {used!r}\n  where they may differ, export with tensors of their own (x.clone())",
            AliasedInputsWarning,
            stacklevel=outside(),
        )


def _refuse_data_writes(program: ExportedProgram) -> None:
    """Reject constants that Dynamo made of ``tensor.data``: they are fake, without values."""
    for name, x in program.constants.items():
        if isinstance(x, FakeTensor) and name.startswith("lifted_tensor"):
            raise ExportError(f"Your model failed to export: {DATA_ADVICE}")


def _aliases(program: ExportedProgram) -> Iterator[tuple[str, str]]:
    """Yield pairs of inputs that were one tensor; the program reads only the first."""
    # Graph passes and files may leave them out; then nothing shows what was one tensor.
    if program.example_inputs is None:
        return
    arguments = pytree.tree_leaves(program.example_inputs)
    inputs = _user_inputs(program)
    if len(arguments) != len(inputs):
        return
    for (x, first), (y, second) in itertools.combinations(zip(arguments, inputs, strict=True), 2):
        # If both are read, torch kept them apart; if neither is, nothing is lost.
        if x is y and isinstance(x, torch.Tensor) and bool(first.users) != bool(second.users):
            used, unused = (first, second) if first.users else (second, first)
            yield used.name, unused.name


def _user_inputs(program: ExportedProgram) -> list[torch.fx.Node]:
    kinds = {s.arg.name: s.kind for s in program.graph_signature.input_specs}
    placeholders = (node for node in program.graph.nodes if node.op == "placeholder")
    return [node for node in placeholders if kinds[node.name] is InputKind.USER_INPUT]


def refuse_options(**options: Any) -> None:
    """Reject export options for a program that is already exported.

    Args:
        options: The options; None and False count as absent.

    Raises:
        StagingError: If options are present; the message names them.
    """
    names = [name for name, value in options.items() if value]
    if names:
        raise StagingError(
            f"the ExportedProgram is already exported: {', '.join(names)} cannot change it\n"
            "  pass them to torch.export.export, or pass the module to convert()"
        )


def refuse_arguments(
    program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Reject example arguments that do not fit a program, which needs none.

    Raises:
        StagingError: If their number, or the dtype or shape of a tensor, differs.
    """
    if not args and not kwargs:
        return
    arguments, inputs = pytree.tree_leaves((args, dict(kwargs))), _user_inputs(program)
    misfits = [f"{len(arguments)} arguments for {len(inputs)} inputs"]
    if len(arguments) == len(inputs):
        pairs = zip(arguments, inputs, strict=True)
        misfits = [text for x, node in pairs if (text := _misfit(x, node))]
    if misfits:
        raise StagingError(
            f"the arguments do not match the ExportedProgram: {'; '.join(misfits)}\n"
            "  omit them: the program has the arguments that it was exported with"
        )


def _misfit(value: Any, node: torch.fx.Node) -> str:
    expected = node.meta.get("val")
    if not isinstance(expected, torch.Tensor):
        return ""
    expectation = f"{node.name} is {expected.dtype} {list(expected.shape)}"
    if not isinstance(value, torch.Tensor):
        return f"{expectation}, not a {type(value).__name__}"
    same_rank = len(value.shape) == len(expected.shape)
    sizes = zip(value.shape, expected.shape, strict=False)
    fits = all(isinstance(size, torch.SymInt) or size == declared for declared, size in sizes)
    if value.dtype != expected.dtype or not same_rank or not fits:
        return f"{expectation}, not {value.dtype} {list(value.shape)}"
    return ""
