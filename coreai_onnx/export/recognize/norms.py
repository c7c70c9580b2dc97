"""Recognizes modules that are norms, whatever their class name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from coreai_onnx.composites import COMPOSITES
from coreai_onnx.composites.torch_ops import call
from coreai_onnx.export.recognize.blocks import Block
from coreai_onnx.export.recognize.numeric_probe import MAGNITUDES, SEED, probe

_EPS = ("eps", *COMPOSITES["rms_norm"].attribute("eps").aliases, "layer_norm_eps")
Tensor = torch.Tensor


@dataclass(frozen=True)
class _Norm:
    """The parameters of a module that may be a norm.

    Attributes:
        weight: Name of its scale; empty without one.
        bias: Name of its offset; empty without one.
        eps: The constant that is added to the mean square.
        arguments: Number of tensors its forward takes.
    """

    weight: str
    bias: str
    eps: float
    arguments: int


def norm_block(place: str, module: torch.nn.Module) -> Block | None:
    """Return the block for a module that may be a norm; None if it does not look like one.

    It looks like a norm if it has no submodules and no buffers, at most a scale and an offset of
    one axis, an eps, and a forward that takes one tensor (and optionally a gate). It is then run on
    random inputs of three magnitudes, with random weights, and compared with the known forms. The
    block is refused if no form agrees.
    """
    if type(module).__module__.startswith("torch.nn."):
        return None  # torch's own norms are composites already
    seen = _looks_like_a_norm(module)
    if seen is None:
        return None
    reason, kind = "", type(module).__name__
    for index, (composite, form) in enumerate(_forms(seen)):
        original = _with_weights(module, type(module).forward)
        fault = probe(original, _with_weights(module, form), _random_cases(module, seen))
        if not fault:
            return Block(place, kind, composite, _bound(module, form), meaning=(seen, index))
        reason = reason or fault
    return Block(place, kind, "rms_norm", _bound(module, form), reason=reason)


def _looks_like_a_norm(module: torch.nn.Module) -> _Norm | None:
    # A buffer may hold running statistics, as in batch norms, whose results depend on it.
    if any(True for _ in module.children()) or any(True for _ in module.buffers(recurse=False)):
        return None
    weights = dict(module.named_parameters(recurse=False))
    if len(weights) > 2 or any(p.ndim != 1 or not p.is_floating_point() for p in weights.values()):
        return None
    if len({p.shape for p in weights.values()}) > 1:
        return None
    eps = next((vars(module)[n] for n in _EPS if isinstance(vars(module).get(n), float)), None)
    bias = next((n for n in weights if n in ("bias", "beta")), "")
    weight = next((n for n in weights if n != bias), "")
    if eps is None or (bias and not weight) or not hasattr(type(module), "forward"):
        return None
    parameters = [
        p
        for p in inspect.signature(module.forward).parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    needed = [p for p in parameters if p.default is p.empty or p.name == "gate"]
    if not parameters or not 1 <= len(needed) <= 2 or len(needed) != len(parameters):
        return None
    return _Norm(weight, bias, eps, len(needed))


# ---------------------------------------------------------------------- forms
_Form = Callable[..., Tensor]
_Scale = Callable[[Tensor], Tensor]
_SCALES: tuple[_Scale, ...] = (lambda w: w, lambda w: w.float(), lambda w: 1.0 + w.float())
"""The scale of a norm as a function of its weight."""


def _forms(norm: _Norm) -> Iterator[tuple[str, _Form]]:
    """Yield the candidate forms: the composite, and a function of the module and its inputs.

    Each function calls the composite, and computes the operations around it that the composite
    does not include.
    """
    if norm.bias:
        yield "layer_norm", _layer_norm(norm)
        return
    # The first form that agrees is used, so the one with the fewest further operators comes first.
    for scale in _SCALES if norm.weight else _SCALES[:1]:
        plain = _rms_norm(norm, scale)
        if norm.arguments == 1:
            yield "rms_norm", plain
        else:
            yield "rms_norm", _gated(plain, before=False)
            yield "rms_norm", _gated(plain, before=True)
    if norm.arguments == 1:
        yield "layer_norm", _layer_norm(norm)


def _rms_norm(norm: _Norm, scale: _Scale) -> _Form:
    def form(module: torch.nn.Module, x: Tensor) -> Tensor:
        weight = scale(getattr(module, norm.weight)) if norm.weight else None
        return call("rms_norm", x, weight, eps=norm.eps)

    return form


def _gated(plain: _Form, *, before: bool) -> _Form:
    def form(module: torch.nn.Module, x: Tensor, gate: Tensor) -> Tensor:
        factor = F.silu(gate.float())
        result: Tensor = plain(module, x.float() * factor) if before else plain(module, x) * factor
        return result.to(x.dtype)

    return form


def _layer_norm(norm: _Norm) -> _Form:
    def form(module: torch.nn.Module, x: Tensor) -> Tensor:
        weight = getattr(module, norm.weight) if norm.weight else None
        bias = getattr(module, norm.bias) if norm.bias else None
        return F.layer_norm(x, x.shape[-1:], weight, bias, norm.eps)

    return form


def _bound(module: torch.nn.Module, form: _Form) -> Callable[..., Any]:
    """Return a form as a forward of the module, with the parameter names of the original."""
    signature = inspect.signature(module.forward)

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        return form(module, *signature.bind(*args, **kwargs).args)

    return forward


# ---------------------------------------------------------------------- numeric check
def _random_cases(module: torch.nn.Module, norm: _Norm) -> Iterator[dict[str, Any]]:
    """Yield random inputs and weights of a norm."""
    generator = torch.Generator().manual_seed(SEED)
    parameters = dict(module.named_parameters(recurse=False))
    like = next(iter(parameters.values()), None)
    width = 16 if like is None else like.shape[0]
    dtype = torch.float32 if like is None else like.dtype
    # Inputs of several ranks reveal a norm over other axes than the last.
    for magnitude, lead in zip(MAGNITUDES, ((2, 3), (4,), (2, 2, 3)), strict=True):
        size = max(magnitude, 1.0)
        weights = {
            name: (torch.randn(p.shape, generator=generator) * size).to(p.dtype)
            for name, p in parameters.items()
        }
        inputs = [
            (torch.randn((*lead, width), generator=generator) * magnitude).to(dtype)
            for _ in range(norm.arguments)
        ]
        yield {"inputs": inputs, "weights": weights}


def _with_weights(module: torch.nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``forward`` of a module, without its hooks, on other weights."""
    registry = vars(module)["_parameters"]

    def call_forward(inputs: Sequence[Tensor], weights: dict[str, Tensor]) -> Any:
        before = dict(registry)
        # torch.func.functional_call would call the module, and with it the hooks.
        registry.update(weights)
        try:
            return forward(module, *inputs)
        finally:
            registry.update(before)

    return call_forward
