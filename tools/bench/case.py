"""How a case of ``python -m tools.bench.kernels`` is stated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from tools.bench.fused_ops import Fused

Inputs = list[torch.Tensor | None]
Call = Callable[[], torch.Tensor]
Graph = tuple[Any, list[torch.Tensor]]
Bound = Literal["fma", "bf16", "int8", "read", "copy"]
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
NARROW = {F16: "float16", BF16: "bfloat16"}


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: As the table shows it.
        composite: What is called.
        inputs: Makes the inputs; None for an absent one.
        torch: The same in torch eager, on the same inputs; the first output first. None if
            ``prepared`` has it.
        bound: What limits it: multiply-adds (of float32, or of tiles of bfloat16 or of bytes),
            reading, or copying.
        flops: Floating-point operations that no implementation can save.
        bytes: Bytes that have to be read, or read and written, once.
        attributes: The composite's.
        fused: onnxruntime's ops for the same.
        prepared: More of torch, by name: each packs the weights of the inputs once, and returns
            the call.
        openvino: Makes OpenVINO's own graph for the same and its inputs, instead of the body.
        constants: Places of the inputs that belong to the model, for onnxruntime and OpenVINO.
        in_place: The output takes the memory of the first input, in onnxruntime.
        share: Aimed at: this share of the limit.
        milliseconds: Aimed at: no more than this on one thread.
        ratios: Aimed at: this many times faster than the peer of that name.
        exact: Attributes of the reference that errors are measured from, where others than the
            case's: without the rounding of activations.
        parts: The reference is computed for this many parts of the heads, one after the other.
    """

    name: str
    composite: str
    inputs: Callable[[], Inputs]
    torch: Callable[..., Any] | None
    bound: Bound
    flops: float
    bytes: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fused: Sequence[Callable[[Inputs, Mapping[str, Any]], Fused]] = ()
    prepared: Mapping[str, Callable[[Inputs], Call]] = field(default_factory=dict)
    openvino: Callable[[Inputs], Graph] | None = None
    constants: Sequence[int] = ()
    in_place: bool = False
    share: float | None = None
    milliseconds: float | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)
    exact: Mapping[str, Any] = field(default_factory=dict)
    parts: int = 1


def normal(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape).to(dtype)
