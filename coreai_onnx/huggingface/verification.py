"""Comparison of an exported decoder with torch at other sizes than those of the export.

torch.export takes one branch wherever a model tests a size, and reports a condition on the sizes.
The conditions of language models are stricter than necessary: padding to whole chunks, for example,
is right for a padding of 0 too. They are dropped, and this check takes their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from coreai_onnx.errors import ConversionError
from coreai_onnx.huggingface.caches import STATE
from coreai_onnx.huggingface.decoders import KEPT, Decoder
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.session import Session

SIZES = ((1, 5, 0), (1, 1, 5), (3, 8, 0), (3, 1, 8))
"""Batch, number of tokens and number of cached ones."""
_TOLERANCE = {torch.float16: 5e-2, torch.float32: 2e-3}
"""Largest difference, relative to the largest value: more than rounding, less than an error."""
_SCALE = 0.5
_SPARE = 64
"""Tokens that are drawn beside those needed, in place of those without an embedding."""
_NOISE = {torch.float16: 1e-3, torch.float32: 1e-5}
"""Relative changes of embeddings and caches, about those that another order of sums makes."""
_TRIALS, _MARGIN = 3, 2.0


def check_at_other_sizes(decoder: Decoder, program: OnnxProgram) -> None:
    """Run a decoder in torch and in onnxruntime on random tokens and caches.

    Args:
        decoder: The decoder that was exported.
        program: The program of it.

    Raises:
        ConversionError: If an output differs.
    """
    session = Session(program, prepack=False)  # the weights stay in a mapped file
    random = torch.Generator().manual_seed(0)
    for batch, length, past in SIZES:
        if past and not decoder.slots:
            continue
        if batch > 1 == length and not decoder.takes_mask:
            continue  # transformers mixes the rows of RWKV
        *first, cache = _randomized(decoder, (batch, length, past), random)
        given = [x for x in first if x is not None]
        feeds = dict(zip(decoder.input_names, [*given, *cache], strict=True))
        feeds.pop(KEPT, None)  # an export has a number in its place, by default that of all tokens
        with torch.no_grad():
            wanted = decoder(*first, [x.clone() for x in cache])  # a step may write to its states
        outputs = session.stream().run(**feeds)
        actual = {"logits": outputs["logits"], **outputs.states}
        names = ["logits", *(slot.past for slot in decoder.slots)]
        moved: list[float] | None = None
        for place, (name, expected) in enumerate(zip(names, wanted, strict=True)):
            error, limit = _error(actual[name], expected)
            if not error <= limit and moved is None:
                moved = _movements(decoder, first, cache, wanted, random)
            if moved is not None and not error <= max(limit, _MARGIN * moved[place]):
                raise ConversionError(
                    f"the exported decoder differs from torch: {name} by {error:.3g} for "
                    f"{batch} × {length} tokens after {past}",
                    advice="export it with check=False to look into it, and please report the "
                    "model",
                )


def _randomized(
    decoder: Decoder, sizes: tuple[int, int, int], random: torch.Generator
) -> tuple[Any, ...]:
    """Return arguments with random tokens and a random cache."""
    ids, *others, cache = decoder.arguments(*sizes)
    tokens = _tokens(decoder.model, ids.shape, random)
    # A text begins with states of zeros; some models do not read others before the first token.
    scale = _SCALE if sizes[-1] else 0.0
    values = [(torch.randn(x.shape, generator=random) * scale).to(x.dtype) for x in cache]
    for slot, value in zip(decoder.slots, values, strict=True):
        if slot.kind == STATE:
            value.abs_()  # one of them is a divisor
    return (tokens, *others, values)


def _tokens(model: Any, shape: torch.Size, random: torch.Generator) -> torch.Tensor:
    """Return random tokens that have an embedding.

    The embedding of a padding token is zero. A router that reads it, as that of JetMoE does, gives
    equal scores to all experts, and which of them ``torch.topk`` takes is arbitrary.
    """
    size = model.config.get_text_config(decoder=True).vocab_size
    drawn = torch.randint(0, size, (shape.numel() + _SPARE,), generator=random)
    has_embedding = model.get_input_embeddings()(drawn).flatten(1).any(dim=1)
    return drawn[has_embedding.argsort(descending=True, stable=True)][: shape.numel()].view(shape)


def _error(actual: Any, expected: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference, and the largest that is rounding."""
    wanted = expected.float().numpy()
    found = np.asarray(actual, np.float32)
    limit = _TOLERANCE[expected.dtype] * (np.abs(wanted).max(initial=0) + 1e-6)
    error = np.abs(found - wanted).max(initial=0) if found.shape == wanted.shape else np.inf
    return float(error), float(limit)


def _movements(
    decoder: Decoder,
    first: Sequence[Any],
    cache: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    random: torch.Generator,
) -> list[float]:
    """Return the largest differences of torch's own outputs for inputs that differ by rounding.

    Where a layer rounds its inputs to few bits, or selects the largest ones, a small difference
    becomes a step of 1 %.
    """

    def changed(x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(x.shape, generator=random) * _NOISE.get(x.dtype, 0.0)
        return x * (1 + noise).to(x.dtype) if x.is_floating_point() else x.clone()

    largest = [0.0] * len(wanted)
    embeddings = decoder.model.get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda _module, _inputs, output: changed(output))
    try:
        for _ in range(_TRIALS):
            with torch.no_grad():
                outputs = decoder(*first, [changed(x) for x in cache])
            pairs = zip(outputs, wanted, strict=True)
            errors = [_error(output.float(), expected)[0] for output, expected in pairs]
            largest = [max(pair) for pair in zip(largest, errors, strict=True)]
    finally:
        hook.remove()
    return largest
