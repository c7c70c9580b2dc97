"""Parameters whose values stay in the mapped files of a checkpoint until a model is written.

torch.export reads shapes and dtypes of parameters only. The memory of a deferred parameter is
never written to, so that it takes no memory; where its values are needed, the file has them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from coreai_onnx.export.compat.torch_names import FakeTensorMode
from coreai_onnx.model.files.mapped_tensors import MappedTensor, WidenedTensor

T = TypeVar("T")
LARGE = 1 << 30
"""Bytes of weights that reading takes longer than a second run would."""
_SOURCE = "coreai_source"
"""The attribute of a parameter with its values in the dtype of the file."""


def defer(parameter: torch.Tensor, source: torch.Tensor) -> None:
    """Let a mapped tensor have the values of a parameter."""
    setattr(parameter, _SOURCE, source)


def deferred_source(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the mapped tensor that has the values of a parameter; None if it has them itself."""
    source: torch.Tensor | None = getattr(tensor, _SOURCE, None)
    return source


def run_for_shapes(module: torch.nn.Module, run: Callable[[], T]) -> T:
    """Call a function that runs a module and of whose results only the shapes matter.

    A module with deferred parameters, or large packed weights, runs on fake tensors.
    """
    deferred = any(deferred_source(parameter) is not None for parameter in module.parameters())
    if deferred or sum(buffer.nbytes for buffer in module.buffers()) > LARGE:
        # Some operators of experts have no fake form in float32; they run on what the memory holds.
        with suppress(RuntimeError, ValueError), FakeTensorMode(allow_non_fake_inputs=True):
            return run()
    return run()


def onnx_tensor(tensor: torch.Tensor, stored: torch.Tensor, name: str) -> ir.TensorProtocol:
    """Return the ONNX tensor of a parameter or buffer.

    Args:
        tensor: The parameter or buffer.
        stored: Its values in a dtype that ONNX has.
        name: The name of the tensor.
    """
    source = deferred_source(tensor)
    plain = TorchTensor(stored.detach().contiguous(), name=name)
    if source is None:
        return plain
    mapped = MappedTensor(TorchTensor(source, name=name), _key(source), transposed=False)
    return WidenedTensor(mapped, plain.dtype, name)


def _key(source: torch.Tensor) -> tuple[object, ...]:
    return source.data_ptr(), source.dtype, tuple(source.shape)
