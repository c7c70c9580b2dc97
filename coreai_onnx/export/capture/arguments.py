"""The example arguments of an export, in the form that ``torch.export`` takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from coreai_onnx.errors import StagingError
from coreai_onnx.export.capture.sparse import dense
from coreai_onnx.export.compat.torch_names import FakeTensor, pytree


def as_arguments(args: Any, kwargs: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split the arguments that a user gives for one call into positional and keyword arguments.

    Args:
        args: A tuple or list of positional arguments, a mapping of keyword arguments, or a single
            argument that is none of these, such as a tensor.
        kwargs: A mapping of keyword arguments, or None.

    Raises:
        StagingError: If ``kwargs`` is not a mapping with string keys, or both are mappings.
    """
    given = _by_name({} if kwargs is None else kwargs)
    if isinstance(args, Mapping):
        if given:
            raise StagingError(
                "args is a mapping, whose items are keyword arguments, and kwargs is given too\n"
                "  if a parameter takes a dict, pass args as a tuple: (mapping,)"
            )
        return (), _by_name(args)
    if isinstance(args, str | torch.Tensor) or not isinstance(args, Iterable):
        return (args,), given
    if hasattr(args, "__array__"):
        return (args,), given
    return tuple(args), given


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
    given = tensor.detach()
    if tensor.is_meta and not isinstance(tensor, FakeTensor):
        own = torch.zeros_like(given, device="cpu")
    else:
        own = dense(given).clone()
    return own.requires_grad_(tensor.requires_grad)
