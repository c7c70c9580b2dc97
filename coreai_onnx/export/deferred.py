"""Parameters whose values stay in the mapped files of a checkpoint until a model is written.

torch.export reads shapes and dtypes of parameters only. The memory of a deferred parameter is
never written to, so that it takes no memory; where its values are needed, the file has them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor

from coreai_onnx.export.compat.torch_names import FakeTensorMode
from coreai_onnx.model.files.mapped_tensors import MappedTensor, WidenedTensor

_SOURCE = "coreai_source"
"""The attribute of a parameter with its values in the dtype of the file."""


def defer(parameter: torch.Tensor, source: torch.Tensor) -> None:
    """Let a mapped tensor have the values of a parameter."""
    setattr(parameter, _SOURCE, source)


def deferred_source(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the mapped tensor that has the values of a parameter; None if it has them itself."""
    source: torch.Tensor | None = getattr(tensor, _SOURCE, None)
    return source


def shapes_only(module: torch.nn.Module) -> AbstractContextManager[object]:
    """Return a context in which a module with deferred parameters computes no values."""
    if all(deferred_source(parameter) is None for parameter in module.parameters()):
        return nullcontext()
    return FakeTensorMode(allow_non_fake_inputs=True)


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
