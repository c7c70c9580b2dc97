"""The op that represents a call of an ONNX model in an exported program."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import onnx_ir as ir
import torch

from coreai_onnx.errors import DelegationError


class OnnxCallee(Protocol):
    """An ONNX model that a program calls; weights are inputs of the call."""

    def infer(
        self, tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return empty results for fake inputs.

        Raises:
            InputError: If an input does not fit.
        """
        ...

    def run(
        self, tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the results.

        Raises:
            InputError: If an input does not fit.
            SessionError: If the model cannot be run.
        """
        ...

    def functions_at(self, opset: int) -> list[ir.Function]:
        """Return the model as functions for an opset, the one to call last.

        Raises:
            ConversionError: If it cannot be converted to the opset.
        """
        ...


_counter: Iterator[int] = itertools.count()
_CALLEES: dict[str, OnnxCallee] = {}
"""By tag. Exported programs outlive the modules that they were exported from, so a model stays; it
has no weights."""
# A fragment, because module_call.py defines the namespace.
_library = torch.library.Library("coreai_onnx", "FRAGMENT")
_library.define("onnx_call(Tensor[] tensors, Tensor[] weights, str tag) -> Tensor[]")
ONNX_CALL = torch.ops.coreai_onnx.onnx_call.default


def tag_of(callee: OnnxCallee, name: str) -> str:
    """Return unique text by which the op finds a model in this process."""
    tag = f"{name}#{next(_counter)}"
    _CALLEES[tag] = callee
    return tag


def callee_of(tag: str) -> OnnxCallee:
    """Return the model of a tag.

    Raises:
        DelegationError: If the model was opened in another process.
    """
    callee = _CALLEES.get(tag)
    if callee is None:
        raise DelegationError(
            f"the ONNX model {tag} was opened in another process\n"
            "  export the program again from an OnnxModule of this process"
        )
    return callee


def _run(
    tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], tag: str
) -> list[torch.Tensor]:
    return callee_of(tag).run(tensors, weights)


def _infer(
    tensors: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], tag: str
) -> list[torch.Tensor]:
    return callee_of(tag).infer(tensors, weights)


torch.library.impl(_library, "onnx_call", "CompositeExplicitAutograd")(_run)
torch.library.register_fake("coreai_onnx::onnx_call", _infer, lib=_library)
