"""Comparison of a decoder with ``generate``, and of an exported one with torch at other sizes.

torch.export takes one branch wherever a model tests a size, and reports a condition on the sizes.
The conditions of language models are stricter than necessary: padding to whole chunks, for example,
is right for a padding of 0 too. They are dropped, and this check takes their place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers

from coreai_onnx.errors import ConversionError, ModelSourceError, PartialCheckWarning, failures_as
from coreai_onnx.huggingface.caches import STATE
from coreai_onnx.huggingface.checkpoints.loading import first_layers
from coreai_onnx.huggingface.decoders import KEPT, Decoder
from coreai_onnx.messages import size_text
from coreai_onnx.model.files.mapped_tensors import memory_bytes
from coreai_onnx.program import OnnxProgram
from coreai_onnx.runtime.sessions.session import Session

# Prefill and a step, for one text and for a batch, at other sizes than those of the example.
SIZES = ((1, 5, 0), (1, 1, 5), (3, 8, 0), (3, 1, 8))
"""Batch, number of tokens and number of cached ones."""
_TOLERANCE = {torch.bfloat16: 1e-1, torch.float16: 5e-2, torch.float32: 2e-3}
"""Largest difference, relative to the largest value: more than rounding, less than an error."""
_SCALE, _CODE = 0.5, 1 / 64
_CHANGED_CODES = 0.01
"""Share of codes of few bits that the order of sums rounds to a neighbor."""
_PROMPT, _NEW = 5, 3
"""Tokens of a prompt, and those that follow it."""
_SPARE = 64
"""Tokens that are drawn beside those needed, in place of those without an embedding."""
_NOISE = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 1e-5}
"""Relative changes of embeddings and caches, about those that another order of sums makes."""
_TRIALS, _MARGIN = 3, 2.0


def check_generation(decoder: Decoder) -> None:
    """Compare the logits of a decoder with those that ``generate`` of its model computes.

    A model may prepare the inputs of ``generate`` itself: XLNet appends a token, and passes masks
    that the exported decoder does not have. Models that leave it to transformers are not compared.

    Args:
        decoder: The decoder to export.

    Raises:
        ConversionError: If the logits differ.
        ModelSourceError: If the model does not generate.
    """
    model, name = decoder.model, type(decoder.model).__name__
    shared = transformers.GenerationMixin.prepare_inputs_for_generation
    # The default passes what the decoder takes: generating would only cost time.
    if getattr(type(model), "prepare_inputs_for_generation", shared) is shared:
        return
    prompt = random_tokens(model, torch.Size([1, _PROMPT]), torch.Generator().manual_seed(0))
    calls: list[dict[str, Any]] = []
    # The arguments of the first call explain a difference.
    hook = model.register_forward_pre_hook(lambda *call: calls.append(call[-1]), with_kwargs=True)
    # With a cache, as the decoder is exported: Zamba 2 then limits the first step only.
    settings = transformers.GenerationConfig(
        max_new_tokens=_NEW, num_beams=1, do_sample=False, pad_token_id=0, output_logits=True,
        return_dict_in_generate=True, use_cache=bool(decoder.slots),
    )  # fmt: skip
    runs = failures_as(ModelSourceError, f"{name} does not generate")
    try:
        with torch.no_grad(), runs:
            generated = model.generate(
                prompt, attention_mask=torch.ones_like(prompt), generation_config=settings
            )
    finally:
        hook.remove()
    with failures_as(ModelSourceError, f"{name} does not run with input_ids and a cache"):
        steps = list(_teacher_forced(decoder, generated.sequences))
    first = decoder.input_names[: len(decoder.input_names) - len(decoder.slots)]
    for expected, actual in zip(generated.logits, steps, strict=False):  # it may end early
        error, limit = difference(actual, expected)
        # Not ``error > limit``: NaN must fail as well.
        if not error <= limit:
            raise ConversionError(
                f"{name}: generate and a call with {', '.join(first)} return other logits "
                f"(by {error:.3g})",
                advice=f"{_difference(calls[0], decoder)}: such models are not exported",
            )


def check_first_layers(model: Any, check: Callable[[Any], object]) -> None:
    """Check the first layers of a model that exceeds the memory, as many as it holds.

    Args:
        model: The model, with deferred weights.
        check: Converts and checks the decoder of a model.

    Raises:
        ConversionError: If the layers differ from torch.
    """
    part = first_layers(model)
    if part is not None:
        check(part[0])
    layers = 0 if part is None else part[1]
    total = model.config.get_text_config(decoder=True).num_hidden_layers
    warnings.warn(
        f"compared the first {layers} of {total} layers with torch: the memory "
        f"({size_text(memory_bytes())}) does not hold more of the model",
        PartialCheckWarning,
        stacklevel=2,
    )


def _teacher_forced(decoder: Decoder, tokens: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the logits of each token after the prompt, which follow from the tokens before it."""
    *_, cache = decoder.arguments(1, 1, 0)
    read = 0
    for end in range(_PROMPT, tokens.shape[1]):
        _, mask, positions, kept, _ = decoder.arguments(1, end - read, read)
        with torch.no_grad():
            logits, *cache = decoder(tokens[:, read:end], mask, positions, kept, cache)
        # Without a cache, every step reads all tokens.
        read = end if decoder.slots else 0
        yield logits[:, -1]


def _difference(call: Mapping[str, Any], decoder: Decoder) -> str:
    """Describe what ``generate`` passes in its first call and the decoder does not."""
    taken = {*decoder.input_names, "cache_position"}
    names = [n for n, x in call.items() if isinstance(x, torch.Tensor) and n not in taken]
    length = call["input_ids"].shape[1] if call.get("input_ids") is not None else _PROMPT
    names += [f"{length} tokens for a prompt of {_PROMPT}"] if length != _PROMPT else []
    return f"generate passes {', '.join(names) or 'other values'}"


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
        inputs = [x for x in first if x is not None]
        feeds = dict(zip(decoder.input_names, [*inputs, *cache], strict=True))
        feeds.pop(KEPT, None)  # an export has a number in its place, by default that of all tokens
        with torch.no_grad():
            # A step may write to its states.
            references = decoder(*first, [x.clone() for x in cache])
        # A stream of its own for each size: states must not carry over.
        outputs = session.stream().run(**feeds)
        actual = {"logits": outputs["logits"], **outputs.states}
        names = ["logits", *(slot.past for slot in decoder.slots)]
        moved: list[float] | None = None
        for place, (name, expected) in enumerate(zip(names, references, strict=True)):
            result = actual[name]
            if place and decoder.slots[place - 1].is_static:
                # What no token has been written to has no meaning, and no attention reads it.
                result, expected = (x[:, :, : past + length] for x in (result, expected))
            error, limit = difference(result, expected)
            if not error <= limit and moved is None:
                # Only when a limit is exceeded: it runs torch several times more.
                moved = _movements(decoder, first, cache, references, random)
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
    tokens = decoder.first(random_tokens(decoder.model, ids.shape[:2], random))
    # A text begins with states of zeros; some models do not read others before the first token.
    scale = _SCALE if sizes[-1] else 0.0
    values = [(torch.randn(x.shape, generator=random) * scale).to(x.dtype) for x in cache]
    for slot, value in zip(decoder.slots, values, strict=True):
        if slot.dtype == torch.uint8:  # codes of few bits, whose scales are small
            value.random_(0, 256, generator=random)
        if slot.kind.endswith("_scale"):
            value.abs_().mul_(_CODE)
        if slot.kind == STATE:
            value.abs_()  # one of them is a divisor
    return (tokens, *others, values)


def random_tokens(model: Any, shape: torch.Size, random: torch.Generator) -> torch.Tensor:
    """Return random tokens that have an embedding.

    The embedding of a padding token is zero. A router that reads it, as that of JetMoE does, gives
    equal scores to all experts, and which of them ``torch.topk`` takes is arbitrary.
    """
    size = model.config.get_text_config(decoder=True).vocab_size
    # More than needed, because padding tokens are sorted out below.
    drawn = torch.randint(0, size, (shape.numel() + _SPARE,), generator=random)
    has_embedding = model.get_input_embeddings()(drawn).flatten(1).any(dim=1)
    return drawn[has_embedding.argsort(descending=True, stable=True)][: shape.numel()].view(shape)


def difference(actual: Any, expected: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference, and the largest that is rounding."""
    if expected.dtype == torch.uint8:
        changed = np.asarray(actual) != expected.numpy()
        return float(changed.mean() if changed.size else 0.0), _CHANGED_CODES
    reference = expected.float().numpy()
    # numpy has no bfloat16.
    result = np.asarray(actual.float() if isinstance(actual, torch.Tensor) else actual, np.float32)
    # Relative to the largest value: single logits near 0 have no relative accuracy.
    limit = _TOLERANCE[expected.dtype] * (np.abs(reference).max(initial=0) + 1e-6)
    error = np.abs(result - reference).max(initial=0) if result.shape == reference.shape else np.inf
    return float(error), float(limit)


def _movements(
    decoder: Decoder,
    first: Sequence[Any],
    cache: Sequence[torch.Tensor],
    references: Sequence[torch.Tensor],
    random: torch.Generator,
) -> list[float]:
    """Return the largest differences of torch's own outputs for inputs that differ by rounding.

    Where a layer rounds its inputs to few bits, or selects the largest ones, a small difference
    becomes a step of 1 %.
    """

    def changed(x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(x.shape, generator=random) * _NOISE.get(x.dtype, 0.0)
        return x * (1 + noise).to(x.dtype) if x.is_floating_point() else x.clone()

    largest = [0.0] * len(references)
    embeddings = decoder.model.get_input_embeddings()
    hook = embeddings.register_forward_hook(lambda _module, _inputs, output: changed(output))
    try:
        for _ in range(_TRIALS):
            with torch.no_grad():
                outputs = decoder(*first, [changed(x) for x in cache])
            pairs = zip(outputs, references, strict=True)
            errors = [difference(output.float(), expected)[0] for output, expected in pairs]
            largest = [max(pair) for pair in zip(largest, errors, strict=True)]
    finally:
        hook.remove()
    return largest
