"""Modules of diffusers without Python code that depends on the sizes, so that one trace fits all.

`Component.check` compares the exported file with the modules as they are.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

Forward = Callable[..., Any]


@contextmanager
def one_trace(model: torch.nn.Module) -> Iterator[None]:
    """While active, upsampling does not compare sizes, and Wan's autoencoder has no loop."""
    replaced = [
        (module, name, functools.partial(function, module))
        for module in model.modules()
        for name, function in _replacements(module)
    ]
    try:
        for module, name, function in replaced:
            setattr(module, name, function)
        yield
    finally:
        for module, name, _ in replaced:
            delattr(module, name)


@contextmanager
def counted_layers(model: torch.nn.Module) -> Iterator[Iterator[int]]:
    """While active, calls of a model's modules are counted; the next value is their number."""
    count = itertools.count()

    def hook(*_: Any) -> None:
        next(count)

    handles = [module.register_forward_pre_hook(hook) for module in model.modules()]
    try:
        yield count
    finally:
        for handle in handles:
            handle.remove()


def _replacements(module: Any) -> list[tuple[str, Forward]]:
    """Return the methods of a module to replace."""
    kind = type(module).__name__
    if kind == "Upsample2D":
        plain = module.interpolate and module.norm is None and not module.use_conv_transpose
        return [("forward", _upsample)] if plain else []
    if kind == "WanResample":
        return [("forward", _resample)]
    return [("_encode", _encode), ("_decode", _decode)] if kind == "AutoencoderKLWan" else []


def _upsample(layer: Any, hidden_states: torch.Tensor, output_size: Any = None) -> torch.Tensor:
    """Return what ``Upsample2D`` does: twice the size, or the given one.

    diffusers makes large tensors contiguous, for kernels of torch.
    """
    factor = None if output_size else 2.0
    x = F.interpolate(hidden_states, size=output_size, scale_factor=factor)
    convolution = layer.conv if layer.name == "conv" else layer.Conv2d_0
    return convolution(x) if layer.use_conv else x


def _encode(vae: Any, x: torch.Tensor) -> torch.Tensor:
    """Return what ``AutoencoderKLWan._encode`` does: all frames at once.

    diffusers passes four frames at a time, with those before them that a causal convolution reads.
    """
    if vae.config.patch_size is not None:
        x = _module_of(vae).patchify(x, patch_size=vae.config.patch_size)
    parameters: torch.Tensor = vae.quant_conv(vae.encoder(x))
    return parameters


def _decode(vae: Any, z: torch.Tensor, *, return_dict: bool = True) -> Any:
    """Return what ``AutoencoderKLWan._decode`` does: all frames at once."""
    x = vae.decoder(vae.post_quant_conv(z), first_chunk=True)
    module = _module_of(vae)
    if vae.config.patch_size is not None:
        x = module.unpatchify(x, patch_size=vae.config.patch_size)
    x = x.clamp(-1.0, 1.0)
    return module.DecoderOutput(sample=x) if return_dict else (x,)


def _resample(layer: Any, x: torch.Tensor, **_cache: Any) -> torch.Tensor:
    """Return what ``WanResample`` does to all frames; the first one has no predecessor."""
    first = x[:, :, :1]
    if layer.mode == "upsample3d":
        # The convolution pads with zeros where the first frame is.
        later = layer.time_conv(torch.cat([torch.zeros_like(first), x[:, :, 1:]], 2))[:, :, 1:]
        later = later.unflatten(1, (2, -1)).permute(0, 2, 3, 1, 4, 5).flatten(2, 3)
        x = torch.cat([first, later], 2)
    batch, frames = x.shape[0], x.shape[2]
    x = layer.resample(x.transpose(1, 2).flatten(0, 1))
    x = x.unflatten(0, (batch, frames)).transpose(1, 2)
    if layer.mode == "downsample3d":
        # Two frames more, so that one frame alone has a result, which is left out.
        later = layer.time_conv(F.pad(x, (0, 0, 0, 0, 0, 2)))[:, :, :-1]
        x = torch.cat([x[:, :, :1], later], 2)
    return x


def _module_of(model: Any) -> Any:
    return sys.modules[type(model).__module__]
