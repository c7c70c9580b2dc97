"""Makes sparse weights dense while a model is exported: ONNX has no operators for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from coreai_onnx.export.compat.torch_names import mkldnn_layout


@contextmanager
def dense_buffers(model: torch.nn.Module) -> Iterator[None]:
    """While active, every sparse buffer and parameter of a model is dense."""
    replaced: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = []
    for registry in _registries(model):
        for name, tensor in registry.items():
            if tensor is not None and (made := dense(tensor)) is not tensor:
                replaced.append((registry, name, tensor, made))
    try:
        for registry, name, _, made in replaced:
            registry[name] = made
        yield
    finally:
        for registry, name, tensor, _ in replaced:
            registry[name] = tensor


def _registries(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    for module in model.modules():
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
