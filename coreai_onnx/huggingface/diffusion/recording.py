"""What a pipeline passes to its modules: recorded in runs that differ in one size each.

No module of diffusers declares the shapes of its inputs, and each pipeline packs them in its own
way. A run tells them, and a dimension that is another one in a run with another height follows the
height. So one function serves every pipeline that makes something from a text.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from coreai_onnx.errors import ModelSourceError, failures_as

DECODE = "vae_decoder"
ENCODE = "vae_encoder"
Call = Mapping[str, Any]
"""The arguments of a call by the names of the parameters."""
# How pipelines call the number of pixels, or frames, for each one of a latent.
_PIXELS = ("vae_scale_factor", "vae_scale_factor_spatial", "vae_spatial_compression_ratio")
_FRAMES = ("vae_scale_factor_temporal", "vae_temporal_compression_ratio")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run.

    Attributes:
        batch: Texts.
        height: Height in units of the denoiser.
        width: Width in the same units.
        sequence: Tokens that each text is padded to.
        frames: Latents of a video.
    """

    batch: int = 2
    # Odd sizes in which a U-Net passes its upsampling the size to reach: with even ones it doubles,
    # which would be wrong for odd ones.
    height: int = 5
    width: int = 7
    sequence: int = 12
    frames: int = 3


BASE = Sizes()
"""The sizes of the examples."""
CHANGED = Sizes(batch=3, height=8, width=6, sequence=16, frames=2)
"""The other value of each size; an even height and width among them."""


def record(pipeline: Any) -> dict[str, dict[str, Call]]:
    """Run a pipeline, and once more for each of its sizes.

    Args:
        pipeline: A pipeline of diffusers.

    Returns:
        The first call of each module that runs, by its name, then by the size that differs from
        `BASE`, which is named ``""``.

    Raises:
        ModelSourceError: If it does not run with a text alone.
    """
    names = ["", "batch", "height", "width", "sequence"]
    if "num_frames" in _parameters(pipeline):
        names.append("frames")
    calls: dict[str, dict[str, Call]] = {}
    for name in names:
        sizes = replace(BASE, **({name: getattr(CHANGED, name)} if name else {}))
        for component, call in _run(pipeline, sizes).items():
            calls.setdefault(component, {})[name] = call
    return calls


def _run(pipeline: Any, sizes: Sizes) -> dict[str, Call]:
    """Run a pipeline for one step; return the first call of each module."""
    calls: dict[str, Call] = {}
    # A shallow copy: the user's scheduler and settings stay as they are.
    run = copy.copy(pipeline)
    run.scheduler = copy.deepcopy(pipeline.scheduler)
    if getattr(run, "safety_checker", None) is not None:
        run.safety_checker = None  # not exported, and never in the dtype of the export
    run.set_progress_bar_config(disable=True)
    what = f"{type(pipeline).__name__} does not run with a prompt alone"
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        _padded_to(run, sizes.sequence),
        _recorded(pipeline, calls),
        failures_as(ModelSourceError, what),
    ):
        run(**_arguments(pipeline, sizes))
    return calls


def _arguments(pipeline: Any, sizes: Sizes) -> dict[str, Any]:
    """Return the arguments of a run: those of these that the pipeline takes."""
    denoiser = pipeline.components.get("unet")
    patch = getattr(getattr(pipeline, "transformer", None), "config", {}).get("patch_size", 2)
    # A transformer reads patches of latents, Flux always those of 2 × 2.
    patches = max(2, *patch) if isinstance(patch, list | tuple) else max(2, patch or 1)
    unit = _factor(pipeline, _PIXELS, 8) * (patches if denoiser is None else 1)
    arguments = {
        "prompt": ["a text"] * sizes.batch,
        "height": unit * sizes.height,
        "width": unit * sizes.width,
        "num_frames": 1 + _factor(pipeline, _FRAMES, 1) * (sizes.frames - 1),
        "num_inference_steps": 1,
        "max_sequence_length": sizes.sequence,
        "output_type": "pt",
    }
    return {name: x for name, x in arguments.items() if name in _parameters(pipeline)}


def _factor(pipeline: Any, names: tuple[str, ...], usual: int) -> int:
    return next((int(getattr(pipeline, name)) for name in names if hasattr(pipeline, name)), usual)


def _parameters(pipeline: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(type(pipeline).__call__).parameters


@contextmanager
def _padded_to(pipeline: Any, length: int) -> Iterator[None]:
    """While active, tokenizers that pad to their longest text pad to another length."""
    tokenizers = [x for x in pipeline.components.values() if hasattr(x, "model_max_length")]
    lengths = [x.model_max_length for x in tokenizers]
    if hasattr(pipeline, "tokenizer_max_length"):
        pipeline.tokenizer_max_length = length  # of the copy
    try:
        for tokenizer in tokenizers:
            tokenizer.model_max_length = length
        yield
    finally:
        for tokenizer, before in zip(tokenizers, lengths, strict=True):
            tokenizer.model_max_length = before


@contextmanager
def _recorded(pipeline: Any, calls: dict[str, Call]) -> Iterator[None]:
    """While active, the first call of each module is kept."""
    modules = {n: x for n, x in pipeline.components.items() if isinstance(x, torch.nn.Module)}
    vae: Any = modules.pop("vae", None)
    hooks = [
        module.register_forward_pre_hook(_hook(name, calls), with_kwargs=True)
        for name, module in modules.items()
    ]
    try:
        if vae is not None:
            # Not its forward, which encodes and decodes.
            vae.decode = _decoding(vae, vae.decode, calls)
        yield
    finally:
        if vae is not None:
            del vae.decode
        for hook in hooks:
            hook.remove()


def _hook(name: str, calls: dict[str, Call]) -> Callable[[Any, Any, Any], None]:
    def keep(module: Any, args: Any, kwargs: Any) -> None:
        calls.setdefault(name, bound(module.forward, *args, **kwargs))

    return keep


def _decoding(vae: Any, decode: Any, calls: dict[str, Call]) -> Callable[..., Any]:
    def keep(*args: Any, **kwargs: Any) -> Any:
        result = decode(*args, **kwargs)
        if DECODE not in calls:
            calls[DECODE] = bound(decode, *args, **kwargs)
            # No pipeline that begins with a text encodes a picture: that of the decoder serves.
            calls[ENCODE] = bound(vae.encode, result[0])
        return result

    return keep


def bound(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return arguments by the names of the parameters, without those that are None."""
    arguments = inspect.signature(function).bind(*args, **kwargs).arguments
    extra = arguments.pop("kwargs", {})
    return {name: x for name, x in {**arguments, **extra}.items() if x is not None}
