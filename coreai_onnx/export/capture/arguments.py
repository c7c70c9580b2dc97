"""The arguments of an export: nested, baked in, sparse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from coreai_onnx.errors import StagingError
from coreai_onnx.export.compat.torch_names import FakeTensor, mkldnn_layout, pytree


def as_arguments(args: Any, kwargs: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split the arguments that a user gives for one call into positional and keyword arguments.

    Args:
        args: A tuple or list of positional arguments, a mapping of keyword arguments, or a single
            argument that is none of these, such as a tensor.
        kwargs: A mapping of keyword arguments, or None.

    Raises:
        StagingError: If ``kwargs`` is not a mapping with string keys, or both are mappings.
    """
    named = _by_name({} if kwargs is None else kwargs)
    if isinstance(args, Mapping):
        if named:
            raise StagingError(
                "args is a mapping, whose items are keyword arguments, and kwargs is given too\n"
                "  if a parameter takes a dict, pass args as a tuple: (mapping,)"
            )
        return (), _by_name(args)
    # A tensor is iterable: each of its rows would become an argument.
    if isinstance(args, str | torch.Tensor) or not isinstance(args, Iterable):
        return (args,), named
    if hasattr(args, "__array__"):
        return (args,), named
    return tuple(args), named


def _by_name(kwargs: Any) -> dict[str, Any]:
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise StagingError(
            "keyword arguments are given as a mapping of parameter names to values, "
            f'{{"x": tensor}}, not as a {type(kwargs).__name__}'
        )
    return dict(kwargs)


def separated(arguments: Any) -> Any:
    """Return the arguments with every tensor copied, so that no two share memory.

    torch.export treats a tensor that is passed twice, or that is passed and also held by the
    module, as one value; the exported program then reads only one of its inputs. A meta tensor,
    which has a shape and a dtype but no values, becomes zeros on the CPU. A sparse tensor becomes
    dense.

    Args:
        arguments: Any nesting of containers that torch's pytree supports.
    """
    return pytree.tree_map_only(torch.Tensor, _copy, arguments)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    detached = tensor.detach()
    if tensor.is_meta and not isinstance(tensor, FakeTensor):
        copied = torch.zeros_like(detached, device="cpu")
    else:
        copied = dense(detached).clone()
    return copied.requires_grad_(tensor.requires_grad)


@contextmanager
def dense_buffers(model: torch.nn.Module) -> Iterator[None]:
    """While active, every sparse buffer and parameter of a model is dense."""
    replaced: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = []
    for registry in _registries(model):
        for name, tensor in registry.items():
            if tensor is not None and (values := dense(tensor)) is not tensor:
                replaced.append((registry, name, tensor, values))
    try:
        for registry, name, _, values in replaced:
            registry[name] = values
        yield
    finally:
        for registry, name, tensor, _ in replaced:
            registry[name] = tensor


def _registries(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    for module in model.modules():
        # A traced module keeps its tensors in C++ and has no such dictionaries.
        yield vars(module).get("_buffers", {})
        yield vars(module).get("_parameters", {})


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor as a dense one of the same class, and other tensors unchanged."""
    if tensor.layout in (torch.strided, mkldnn_layout):
        return tensor
    values = tensor.detach().to_dense()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values
